"""The codec between grader and submission: what is sent comes back, garbage is refused."""

import contextlib
import io
import json
import re
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from classroom.grader import wire

_PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    | st.complex_numbers(allow_nan=False)
)
_DTYPES = st.sampled_from(sorted(wire.DTYPES))
_ARRAYS = _DTYPES.flatmap(
    lambda name: hnp.arrays(name, hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
)
_VALUES = st.recursive(
    _PLAIN | _ARRAYS,
    lambda v: (
        st.lists(v, max_size=3)
        | st.lists(v, max_size=3).map(tuple)
        | st.dictionaries(st.text("ab", max_size=2) | st.integers(0, 9), v, max_size=3)
    ),
    max_leaves=8,
)


def same(a, b):
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (np.ndarray, np.generic)):
        return (
            type(a) is type(b)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.tobytes() == b.tobytes()
        )
    return type(a) is type(b) and a == b


@pytest.mark.slow
@given(_VALUES)
def test_what_is_sent_comes_back(value):
    frame = io.BytesIO(wire.encode(value) + b"the next one")
    assert same(value, wire.receive(frame.read)) and frame.read() == b"the next one"


def test_what_is_not_quite_plain_is_sent_as_it_is():
    reversed_big = np.arange(6, dtype=">f8").reshape(2, 3)[:, ::-1]
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    one, two = wire.decode(wire.encode((reversed_big, masked)))
    assert one.dtype == np.float64 and np.array_equal(one, reversed_big) and one.flags.writeable
    assert two.tolist() == [1.0, 2.0]


def test_what_has_changed():
    assert wire.changed([1, object(), [3]], wire.encode_all([1, 2, [4]])) == [1, 2]


def deep(n):
    return [deep(n - 1)] if n else 0


class Unreadable(list):
    def __iter__(self):
        raise ZeroDivisionError


#: Of an answer, which is one value of a message: what is told, and what for.
NOT_SENT = [
    ("among 90005 values, which is too long", ["a" * 500000] + [""] * 90000),
    ("lists and words of 1000", "a" * 10**6),
    ("more than 100000 values", [0] * 10**5),
    ("too deep", deep(20)),
    ("arrays of more than 16777216 bytes", [np.zeros(2**23, np.int8)] * 3),
    ("shape (0, 33554432), which is too large", np.empty((0, 2**25))),
    ("dtype object, expected one of bool, int8", np.array([None])),
    ("object, expected arrays, numbers", object()),
    ("what cannot be read (ZeroDivisionError)", Unreadable()),
    ("an integer too large", 10**1000),
    ("a key that is neither a word nor a number", {(1,): 2}),
    ("a key that is too large", {2**63: 2}),
]


@pytest.mark.parametrize("words, value", NOT_SENT, ids=[words for words, _ in NOT_SENT])
def test_what_the_other_side_would_not_take_is_not_sent(words, value):
    with pytest.raises(wire.WireError, match=re.escape(words)):
        wire.encode(("returned", value, []))


def frame(structure, data=b""):
    text = structure if isinstance(structure, bytes) else json.dumps(structure).encode()
    return struct.pack("<II", len(text), len(data)) + text + data


def nested(n):
    return ["list", nested(n - 1)] if n else 0


#: What is told of frames that would take memory, run code or mean nothing.
NO_MESSAGES = {
    "not a message: unpack requires": [b"", bytes(7)],
    "a message of 1000001 + 0 bytes": [struct.pack("<II", 10**6 + 1, 0)],
    "a message of 0 + 16777217 bytes": [struct.pack("<II", 0, 2**24 + 1)],
    "a frame of the wrong length": [struct.pack("<II", 10**6, 2**24), frame(0) + b"0"],
    "bytes that belong to nothing": [frame(0, b"1"), frame(["scalar", "int8"], b"12")],
    "too deep": [frame(nested(21))],
    "not a message: ": [frame(b"[" * 10**5), frame(b"a"), frame([])],
    "more than 100000 values": [frame(["list"] + [0] * 10**5)],
    "which is too long": [frame(["list", "a" * 9000] + [0] * 8000)],
    "a value of no kind": [frame({}), frame(["set"])],
    "an integer too large": [frame(10**1000), frame(-(10**1000))],
    "no complex number": [frame(["complex", 1, 1.0]), frame(["complex", 1.0, "a"])],
    "an array of no shape": [frame(["array", "int8", n]) for n in (1, [-1], [1.0], [True])],
    "too large": [frame(["array", "int8", n]) for n in ([2**25], [0, 2**25], [1] * 17)],
    "cannot reshape": [frame(["array", "float64", [2]], bytes(8))],
    "not a message: 'object'": [frame(["array", "object", [1]], bytes(8))],
    "neither a word nor a number": [frame(["dict", [["list"], 0]])],
    "a key that is too large": [frame(["dict", [2**63, 0]])],
}


@pytest.mark.parametrize("words", NO_MESSAGES)
def test_what_is_no_message(words):
    for one in NO_MESSAGES[words]:
        with pytest.raises(wire.WireError, match=re.escape(words)):
            wire.decode(one)


def test_the_largest_that_are_taken():
    for value in (nested(20), ["list"] + [0] * (10**5 - 1), 10**1000 - 1, ["dict", [2**63 - 1, 0]]):
        wire.decode(frame(value))
    assert wire.decode(frame(["array", "int8", [1] * 16], b"7")).shape == (1,) * 16
    assert wire.decode(frame(["array", "bool", [0, 2**24]])).shape == (0, 2**24)
    assert wire.decode(frame(["array", "bool", [2]], b"\2\0")).tolist() == [True, False]
    assert wire.decode(frame(b'"\\ud800"')) == "?"  # half a surrogate pair


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | _DTYPES
    | st.sampled_from(["list", "tuple", "dict", "complex", "array", "scalar"]),
    lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=3), v, max_size=2),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.binary(max_size=60)
    | st.builds(frame, _JSON, st.binary(max_size=16))
    | st.builds(frame, st.binary(max_size=30))
)
def test_garbage_raises_its_own_error_and_nothing_else(data):
    with contextlib.suppress(wire.WireError):
        wire.decode(data)
