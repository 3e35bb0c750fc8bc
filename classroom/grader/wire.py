"""Values as bytes, between the grader and a process it does not trust: JSON for structure, raw bytes for arrays.

A message is a frame: the lengths of two parts (two little-endian uint32), then the parts. The first is JSON, in which
plain values stand for themselves and everything else is a list that begins with its kind:

    ["list", ...]  ["tuple", ...]  ["dict", [key, value], ...]  ["complex", re, im]
    ["array", dtype, shape]  ["scalar", dtype]          both take their bytes from the second part, in order

No pickle: what comes back can be nothing but these. Sizes are compared with limits before memory is taken.
The module imports nothing from this package: it runs on both sides, of one machine, whose order of bytes they share.
"""

import io
import itertools
import json
import math
import struct

import numpy as np

JSON_LIMIT, DATA_LIMIT = 10**6, 2**24
ITEMS, _DEPTH, _BOUND = 10**5, 20, 10**1000
_HEAD = struct.Struct("<II")
DTYPES = {name: np.dtype(name) for name in
           ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
            "float16", "float32", "float64", "complex64", "complex128")}


class WireError(Exception):
    """What cannot be sent, or what came and is no message; in a sentence."""


def _need(condition, message):
    if not condition:
        raise WireError(message)


def encode(value):
    """``value`` as a frame; WireError if it is, or contains, something that is not sent."""
    data = []

    def array(a):
        name = a.dtype.name  # in whatever order its bytes are
        _need(name in DTYPES, f"an array of dtype {str(a.dtype)[:40]}, expected numbers")
        _need(a.nbytes <= DATA_LIMIT, f"an array of shape {a.shape}; that is too large")
        data.append(a.astype(DTYPES[name]).tobytes())
        return name

    def walk(v, depth):
        _need(depth <= _DEPTH, "lists in lists in lists, too deep")
        if v is None or isinstance(v, str):
            return v
        if isinstance(v, np.generic):
            return ["scalar", array(v)]
        if isinstance(v, (int, float)):
            _need(isinstance(v, float) or abs(v) < _BOUND, "an integer too large")
            return v
        if isinstance(v, np.ndarray):
            return ["array", array(np.asarray(v)), v.shape]
        if isinstance(v, complex):
            return ["complex", v.real, v.imag]
        if isinstance(v, (list, tuple)):
            return ["list" if isinstance(v, list) else "tuple", *(walk(item, depth + 1) for item in v)]
        if isinstance(v, dict):
            return ["dict", *([walk(part, depth + 1) for part in pair] for pair in v.items())]
        raise WireError(f"{type(v).__name__}, expected arrays, numbers, strings, or tuples, lists and dicts of them")

    try:
        text = json.dumps(walk(value, 0)).encode()
    except (RecursionError, ValueError) as error:
        raise WireError(str(error)) from None
    data = b"".join(data)
    _need(len(text) <= JSON_LIMIT and len(data) <= DATA_LIMIT, "too much to send")
    return _HEAD.pack(len(text), len(data)) + text + data


def encode_all(values):
    """The frames of several values."""
    return [encode(value) for value in values]


def changed(values, before):
    """Positions of the values that are no longer what :func:`encode_all` made ``before`` of, or cannot be sent."""
    def same(value, frame):
        try:
            return encode(value) == frame
        except WireError:
            return None

    return [i for i, (value, frame) in enumerate(zip(values, before)) if not same(value, frame)]


def receive(read):
    """The value of the frame that ``read(number)`` gives the bytes of; WireError if it is none, EOFError if there are
    no more bytes."""
    head = read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise EOFError("the other process stopped")
    return decode(head + read(sum(sizes(head))))


def sizes(head):
    """Lengths of the two parts, from the first bytes of a frame; WireError if they are too large."""
    text, data = _HEAD.unpack(head)
    _need(text <= JSON_LIMIT and data <= DATA_LIMIT, f"a message of {text} + {data} bytes")
    return text, data


def decode(frame):
    """The value of a whole frame; WireError, and nothing else, if it is none. Arrays are new and writable."""
    try:
        text, length = sizes(frame[:_HEAD.size])
        body = frame[_HEAD.size:]
        _need(len(body) == text + length, "a frame of the wrong length")
        data = io.BytesIO(body[text:])
        value = _value(json.loads(body[:text].decode()), data, itertools.count(1), 0)
        _need(not data.read(1), "bytes that belong to nothing")
        return value
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, struct.error, MemoryError) as error:
        raise WireError(f"not a message: {error!s:.200}") from None


def _value(v, data, items, depth):
    """The value of a part of the JSON; ``items`` counts, ``data`` has the bytes of what is left."""
    _need(next(items) <= ITEMS and depth <= _DEPTH, "too many values, or too deep")
    if v is None or type(v) in (bool, float):
        return v
    if type(v) is int:
        _need(abs(v) < _BOUND, "an integer too large")
        return v
    if type(v) is str:
        return v.encode(errors="replace").decode()  # half a surrogate pair cannot be written to a file
    _need(type(v) is list, "a value of no kind")
    kind, *rest = v
    if kind in ("list", "tuple"):
        found = [_value(item, data, items, depth + 1) for item in rest]
        return found if kind == "list" else tuple(found)
    if kind == "dict":
        return dict([_value(part, data, items, depth + 1) for part in (_key(key), item)] for key, item in rest)
    if kind == "complex":
        real, imag = rest
        _need(type(real) is type(imag) is float, "no complex number")
        return complex(real, imag)
    if kind == "array":
        name, shape = rest
        return _array(name, shape, data)
    _need(kind == "scalar", "a value of no kind")
    name, = rest
    return _array(name, [], data)[()]


def _array(name, shape, data):
    dtype = DTYPES[name]
    _need(type(shape) is list and len(shape) <= 16, "an array of no shape")
    _need(all(type(n) is int and 0 <= n for n in shape), "an array of no shape")
    # An axis of length 0 must not hide huge ones beside it.
    _need(math.prod(n or 1 for n in shape) <= DATA_LIMIT, "an array too large")
    part = data.read(math.prod(shape) * dtype.itemsize)  # of one without all its bytes the shape does not fit
    if name == "bool":  # a byte that is neither 0 nor 1 is no bool
        return (np.frombuffer(part, np.uint8) != 0).reshape(shape)
    return np.frombuffer(part, dtype).reshape(shape).copy()


def _key(key):
    _need(type(key) in (str, int, bool, float, type(None)), "a key that is no key")
    # Larger ones may all have one hash, and a dict takes minutes.
    _need(type(key) is not int or abs(key) < 2**63, "a key that is too large")
    return key
