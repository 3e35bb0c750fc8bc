"""Values as bytes, between the grader and a process it does not trust: JSON for structure, raw
bytes for arrays.

A message is a frame: the lengths of two parts (two little-endian uint32), then the parts. The first
is JSON, in which plain values stand for themselves and everything else is a list that begins with
its kind:

    ["list", ...]  ["tuple", ...]  ["dict", [key, value], ...]  ["complex", re, im]
    ["array", dtype, shape]  ["scalar", dtype]          both take their bytes from the second part, in order

No pickle: what comes back can be nothing but these. Sizes are compared with limits before memory is
taken, on both sides with the same ones: whatever :func:`encode` sends, :func:`decode` takes. They
hold for what NumPy would make of a value as well: in an array of texts each takes as much memory as
the longest. The module imports nothing from this package: it runs on both sides, of one machine,
whose order of bytes they share.
"""  # noqa: E501

import io
import json
import math
import struct

import numpy as np

JSON_LIMIT, DATA_LIMIT = 10**6, 2**24
ITEMS, _DEPTH, _BOUND = 10**5, 20, 10**1000
# A text of _SHORT characters is as long as a number; _TEXTS: bytes of an array of texts.
_AXES, _SHORT, _TEXTS = 16, 64, 2**28
_HEAD = struct.Struct("<II")
_NAMES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64"
    " complex128"
)
DTYPES = {name: np.dtype(name) for name in _NAMES.split()}


class WireError(Exception):
    """What cannot be sent, or what came and is no message; in a sentence."""


def _need(condition, message):
    if not condition:
        raise WireError(message)


class _Held:
    """What a message holds so far: values, numbers and bytes of arrays, the longest text."""

    def __init__(self):
        self.values, self._numbers, self._bytes, self._longest = 0, 0, 0, 0

    def take(self, v, depth):
        """A value that is no array, so deep in others."""
        self.values += 1
        _need(self.values <= ITEMS, f"more than {ITEMS} values in tuples, lists or dicts")
        _need(depth <= _DEPTH, "lists in lists in lists, too deep")
        if isinstance(v, (str, int)):  # a number may become a text
            length = len(v) if isinstance(v, str) else v.bit_length() // 3
            if length > _SHORT:
                self._longest = max(self._longest, length)

    def take_array(self, a, depth):
        """An array, so deep in others."""
        self.take(None, depth)
        self._numbers, self._bytes = self._numbers + a.size, self._bytes + a.nbytes
        _need(self._bytes <= DATA_LIMIT, f"arrays of more than {DATA_LIMIT} bytes")

    def end(self):
        """Nothing more comes."""
        _need(
            4 * (self.values + self._numbers) * self._longest <= _TEXTS,
            f"a text of {self._longest} characters among {self.values + self._numbers} values,"
            " which is too long",
        )


def encode(value):
    """``value`` as a frame; WireError if it is, or contains, something that is not sent."""
    data, held = [], _Held()

    def array(a, depth):
        name = a.dtype.name  # in whatever order its bytes are
        _need(
            name in DTYPES,
            f"an array of dtype {str(a.dtype)[:40]}, expected one of {', '.join(DTYPES)}",
        )
        _need(_fits(a.shape), f"an array of shape {a.shape}, which is too large")
        held.take_array(a, depth)
        data.append(a.astype(DTYPES[name]).tobytes())
        return name

    def walk(v, depth):
        if isinstance(v, np.generic) and not isinstance(v, str):
            return ["scalar", array(v, depth)]
        if isinstance(v, np.ndarray):
            return ["array", array(np.asarray(v), depth), v.shape]
        held.take(v, depth)
        if v is None or isinstance(v, (str, int, float)):
            _need(not isinstance(v, int) or abs(v) < _BOUND, "an integer too large")
            return v
        if isinstance(v, complex):
            return ["complex", v.real, v.imag]
        below = depth + 1
        if isinstance(v, (list, tuple)):
            kind = "list" if isinstance(v, list) else "tuple"
            return [kind, *(walk(item, below) for item in v)]
        if isinstance(v, dict):
            return ["dict", *([_key(walk(k, below)), walk(one, below)] for k, one in v.items())]
        raise WireError(
            f"{type(v).__name__}, expected arrays, numbers, strings, or tuples, lists and dicts of"
            " them"
        )

    try:
        text = json.dumps(walk(value, 0)).encode()
        held.end()
    except WireError:
        raise
    except Exception as error:  # of whatever class, by a value that does not let itself be read
        raise WireError(f"what cannot be read ({type(error).__name__:.50})") from None
    _need(len(text) <= JSON_LIMIT, f"lists and words of {len(text)} bytes, more than {JSON_LIMIT}")
    data = b"".join(data)
    return _HEAD.pack(len(text), len(data)) + text + data


def _fits(shape):
    """Whether an array may have it; an axis of length 0 must not hide huge ones beside it."""
    return len(shape) <= _AXES and math.prod(n or 1 for n in shape) <= DATA_LIMIT


def encode_all(values):
    """The frames of several values."""
    return [encode(value) for value in values]


def changed(values, before):
    """Positions of values that :func:`encode_all` now makes other frames of, or none."""

    def same(value, frame):
        try:
            return encode(value) == frame
        except WireError:
            return False

    return [i for i, (value, frame) in enumerate(zip(values, before)) if not same(value, frame)]


def receive(read):
    """The value of the frame that ``read(number)`` gives; WireError, or EOFError at the end."""
    head = read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise EOFError("the other process stopped")
    return decode(head + read(sum(sizes(head))))


def sizes(head):
    """Lengths of the two parts, from a frame's first bytes; WireError if too large."""
    text, data = _HEAD.unpack(head)
    _need(text <= JSON_LIMIT and data <= DATA_LIMIT, f"a message of {text} + {data} bytes")
    return text, data


def decode(frame):
    """The value of a whole frame; WireError, and nothing else, if it is none."""
    try:
        text, length = sizes(frame[: _HEAD.size])
        body = frame[_HEAD.size :]
        _need(len(body) == text + length, "a frame of the wrong length")
        data = io.BytesIO(body[text:])
        held = _Held()
        value = _value(json.loads(body[:text].decode()), data, held, 0)
        held.end()
        _need(not data.read(1), "bytes that belong to nothing")
        return value
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise WireError(f"not a message: {error!s:.200}") from None
    except (struct.error, MemoryError) as error:
        raise WireError(f"not a message: {error!s:.200}") from None


def _value(v, data, held, depth):
    """The value of a part of the JSON; ``held`` counts, ``data`` has the bytes of what is left."""
    if type(v) is not list:
        held.take(v, depth)
        if type(v) is str:
            return v.encode(errors="replace").decode()  # half a surrogate pair is no text
        _need(v is None or type(v) in (bool, float, int), "a value of no kind")
        _need(type(v) is not int or abs(v) < _BOUND, "an integer too large")
        return v
    kind, *rest = v
    if kind in ("array", "scalar"):
        name, shape = rest if kind == "array" else (*rest, [])
        found = _array(name, shape, data)
        held.take_array(found, depth)
        return found if kind == "array" else found[()]
    held.take(None, depth)
    if kind in ("list", "tuple"):
        found = [_value(item, data, held, depth + 1) for item in rest]
        return found if kind == "list" else tuple(found)
    if kind == "dict":
        return dict(
            [_value(part, data, held, depth + 1) for part in (_key(key), item)]
            for key, item in rest
        )
    _need(kind == "complex", "a value of no kind")
    real, imag = rest
    _need(type(real) is type(imag) is float, "no complex number")
    return complex(real, imag)


def _array(name, shape, data):
    dtype = DTYPES[name]
    listed = type(shape) is list and all(type(n) is int and n >= 0 for n in shape)
    _need(listed, "an array of no shape")
    _need(_fits(shape), "an array that is too large")
    # Of one without all its bytes the shape does not fit.
    part = data.read(math.prod(shape) * dtype.itemsize)
    if name == "bool":  # a byte that is neither 0 nor 1 is no bool
        return (np.frombuffer(part, np.uint8) != 0).reshape(shape)
    return np.frombuffer(part, dtype).reshape(shape).copy()


def _key(key):
    plain = type(key) in (str, int, bool, float, type(None))
    _need(plain, "a dict with a key that is neither a word nor a number")
    # Larger ones may all have one hash, and a dict takes minutes.
    _need(type(key) is not int or abs(key) < 2**63, "a key that is too large")
    return key
