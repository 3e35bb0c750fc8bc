"""Values as bytes, between the grader and a process it does not trust: JSON for structure, raw bytes for arrays.

A message is a frame: the lengths of two parts (two little-endian uint32), then the parts. The first is JSON, in which
plain values stand for themselves and everything else is a list that begins with its kind:

    ["list", ...]  ["tuple", ...]  ["dict", [key, value], ...]  ["complex", re, im]
    ["array", dtype, shape]  ["scalar", dtype]          both take their bytes from the second part, in order

No pickle: what comes back can be nothing but these. Sizes are compared with limits before memory is taken.
The module imports nothing from this package: it runs on both sides.
"""

import json
import math
import struct

import numpy as np

JSON_LIMIT, DATA_LIMIT = 10**6, 2**24
_ITEMS, _DEPTH, _BOUND = 10**5, 20, 10**1000
_HEAD = struct.Struct("<II")
HEAD_SIZE = _HEAD.size
_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in
           ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
            "float16", "float32", "float64", "complex64", "complex128")}


class WireError(Exception):
    """What cannot be sent, or what came and is no message; in a sentence."""


def encode(value):
    """``value`` as a frame; WireError if it is, or contains, something that is not sent."""
    data = []

    def array(a):
        name = a.dtype.newbyteorder("=").name
        if name not in _DTYPES:
            raise WireError(f"an array of dtype {str(a.dtype)[:40]}, expected numbers")
        if a.nbytes > DATA_LIMIT:
            raise WireError(f"an array of shape {a.shape}; that is too large")
        data.append(a.astype(_DTYPES[name]).tobytes())
        return name

    def walk(v, depth):
        if depth > _DEPTH:
            raise WireError("lists in lists in lists, too deep")
        if v is None or isinstance(v, bool):
            return v
        if isinstance(v, str):
            return str(v)
        if isinstance(v, np.generic):
            return ["scalar", array(np.asarray(v))]
        if isinstance(v, float):
            return float(v)
        if isinstance(v, int):
            if abs(v) >= _BOUND:
                raise WireError("an integer too large")
            return int(v)
        if isinstance(v, np.ndarray):
            v = np.asarray(v)
            return ["array", array(v), list(v.shape)]
        if isinstance(v, complex):
            return ["complex", v.real, v.imag]
        if isinstance(v, (list, tuple)):
            return ["list" if isinstance(v, list) else "tuple", *(walk(item, depth + 1) for item in v)]
        if isinstance(v, dict):
            return ["dict", *([walk(key, depth + 1), walk(item, depth + 1)] for key, item in v.items())]
        raise WireError(f"{type(v).__name__}, expected arrays, numbers, strings, or tuples, lists and dicts of them")

    try:
        text = json.dumps(walk(value, 0)).encode()
    except (RecursionError, ValueError) as error:
        raise WireError(str(error)) from None
    data = b"".join(data)
    if len(text) > JSON_LIMIT or len(data) > DATA_LIMIT:
        raise WireError("too much to send")
    return _HEAD.pack(len(text), len(data)) + text + data


def sizes(head):
    """Lengths of the two parts, from the first HEAD_SIZE bytes of a frame; WireError if they are too large."""
    text, data = _HEAD.unpack(head)
    if text > JSON_LIMIT or data > DATA_LIMIT:
        raise WireError(f"a message of {text} + {data} bytes")
    return text, data


def decode(frame):
    """The value of a whole frame; WireError, and nothing else, if it is none. Arrays are new and writable."""
    try:
        text, length = sizes(frame[:HEAD_SIZE])
        body = frame[HEAD_SIZE:]
        if len(body) != text + length:
            raise WireError("a frame of the wrong length")
        return _Decoder(body[text:]).value(json.loads(body[:text].decode()))
    except WireError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, struct.error, MemoryError) as error:
        raise WireError(f"not a message: {error!s:.200}") from None


class _Decoder:
    def __init__(self, data):
        self._data, self._items = memoryview(data), 0

    def value(self, found):
        result = self._value(found, 0)
        if self._data:
            raise WireError("bytes that belong to nothing")
        return result

    def _value(self, v, depth):
        self._items += 1
        if self._items > _ITEMS or depth > _DEPTH:
            raise WireError("too many values, or too deep")
        if v is None or type(v) in (bool, float):
            return v
        if type(v) is int:
            if abs(v) >= _BOUND:
                raise WireError("an integer too large")
            return v
        if type(v) is str:
            return v.encode(errors="replace").decode()  # half a surrogate pair cannot be written to a file
        if type(v) is not list or not v or type(v[0]) is not str:
            raise WireError("a value of no kind")
        kind, *rest = v
        if kind in ("list", "tuple"):
            items = [self._value(item, depth + 1) for item in rest]
            return items if kind == "list" else tuple(items)
        if kind == "dict":
            return {self._key(key): self._value(item, depth + 1) for key, item in rest}
        if kind == "complex":
            real, imag = rest
            if not type(real) is type(imag) is float:
                raise WireError("no complex number")
            return complex(real, imag)
        if kind == "array":
            name, shape = rest
            return self._array(name, shape)
        if kind == "scalar":
            name, = rest
            return self._array(name, [])[()]
        raise WireError("a value of no kind")

    def _key(self, key):
        if type(key) not in (str, int, bool, float, type(None)):
            raise WireError("a key that is no key")
        if type(key) is int and abs(key) >= 2**63:  # larger ones may all have one hash, and a dict takes minutes
            raise WireError("a key that is too large")
        return self._value(key, 0)

    def _array(self, name, shape):
        if type(name) is not str or name not in _DTYPES:
            raise WireError("an array of no dtype")
        if type(shape) is not list or len(shape) > 16:
            raise WireError("an array of no shape")
        if not all(type(n) is int and 0 <= n <= DATA_LIMIT for n in shape):
            raise WireError("an array of no shape")
        dtype = _DTYPES[name]
        # An axis of length 0 must not hide huge ones beside it.
        if math.prod(max(n, 1) for n in shape) > DATA_LIMIT:
            raise WireError("an array too large")
        size = math.prod(shape) * dtype.itemsize
        if size > len(self._data):
            raise WireError("an array without its bytes")
        part, self._data = self._data[:size], self._data[size:]
        if name == "bool":  # a byte that is neither 0 nor 1 is no bool
            return (np.frombuffer(part, np.uint8) != 0).reshape(shape)
        return np.frombuffer(part, dtype).reshape(shape).astype(dtype.newbyteorder("="))
