"""The codec between grader and submission: what is sent comes back, garbage is refused."""

import contextlib
import io
import json
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


@pytest.mark.parametrize(
    "value",
    [["a" * 500000] + [""] * 90000, [0] * 10**5, [np.zeros(2**23, np.int8)] * 3, object()],
    ids=("text", "values", "arrays", "object"),
)
def test_what_the_other_side_would_not_take_is_not_sent(value):
    """As an answer is sent: one value of a message."""
    with pytest.raises(wire.WireError):
        wire.encode(("returned", value, []))


def frame(structure, data=b""):
    text = structure if isinstance(structure, bytes) else json.dumps(structure).encode()
    return struct.pack("<II", len(text), len(data)) + text + data


@pytest.mark.parametrize(
    "structure, data",
    [
        (["array", "float64", [2**40]], b""),
        (["array", "object", [1]], bytes(8)),
        (b"[" * 10**5, b""),
        (["list"] + [0] * 10**5, b""),
    ],
    ids=("size", "objects", "depth", "length"),
)
def test_what_would_take_memory_or_run_code_is_no_message(structure, data):
    with pytest.raises(wire.WireError):
        wire.decode(frame(structure, data))


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
