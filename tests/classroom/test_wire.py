"""The codec between grader and submission: what is sent comes back, and garbage raises its own
error only.
"""

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
    found = wire.decode(
        wire.encode((reversed_big, np.float32(1.5), np.bool_(True), np.nan, masked))
    )
    assert (
        found[0].dtype == np.float64
        and np.array_equal(found[0], reversed_big)
        and found[0].flags.writeable
    )
    assert type(found[1]) is np.float32 and type(found[2]) is np.bool_ and np.isnan(found[3])
    assert found[4].tolist() == [1.0, 2.0]


def test_what_has_changed():
    assert wire.changed([1, object(), [3]], wire.encode_all([1, 2, [4]])) == [1, 2]


def nested(depth, around):
    value = around(0)
    for _ in range(depth):
        value = around(value)
    return value


class Odd(list):
    def __iter__(self):
        raise ValueError


@pytest.mark.parametrize(
    "value",
    [
        object(),
        b"x",
        {1, 2},
        range(3),
        np.array([None]),
        np.array(["a"]),
        10**1000,
        np.broadcast_to(0.0, 2**59),
        [np.zeros(2**24, np.int8), np.int8(0)],
        nested(20, lambda v: [v]),
        nested(20, lambda v: {0: v}),
        Odd(),
        "x" * (10**6 - 1),
        {1: object()},
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_is_not_sent(value):
    with pytest.raises(wire.WireError):
        wire.encode(value)


_NOT_SENT = (
    (["a" * 500000] + [""] * 90000, "a text of 500000 characters among"),
    ({"a" * 5000: [0.0] * 50000}, "a text of 5000"),
    (
        [["a" * 1000] + [""] * 999, *[np.zeros(1000, np.int8)] * 15000],
        "a text of 1000 characters among",
    ),
    ([10**999] + ["a"] * 90000 + [np.zeros(10**6, np.int8)], "a text of 1106 characters"),
    ([0] * 10**5, "more than 100000 values"),
    ([np.zeros(2**23, np.int8)] * 3, "arrays of more than"),
    (np.zeros((1,) * 17), "too large"),
    (np.zeros((0, 2**40)), "too large"),
    ({(1,): 1}, "a key"),
    ({1j: 1}, "a key"),
    ({2**63: 1}, "a key"),
    ({np.int64(1): 1}, "a key"),
    (nested(19, lambda v: [v]), "too deep"),
    (Odd(), r"cannot be read \(ValueError\)"),
    (np.longdouble(1), "dtype float128|dtype float64, expected"),
    (np.datetime64("2026"), "an array of dtype"),
)


@pytest.mark.parametrize("value, says", _NOT_SENT, ids=range(len(_NOT_SENT)))
def test_what_the_other_side_would_not_take_is_not_sent(value, says):
    """As an answer is sent: one value of a message."""
    with pytest.raises(wire.WireError, match=says):
        wire.encode(("returned", value, []))


def test_texts_and_numbers_that_fit_are_sent():
    for value in (
        "x" * 999000,
        ["a" * 64] * 9000 + [np.zeros(2**23)[: 2**20]],
        ["a" * 600] * 1000,
        [0] * (10**5 - 4),
        nested(18, lambda v: (v,)),
        {2**63 - 1: "a", "b": (1,)},
        [np.zeros(2**22, np.int8)] * 4,
    ):
        assert same(value, wire.decode(wire.encode(("returned", value, [])))[1])


def frame(structure, data=b""):
    text = structure if isinstance(structure, bytes) else json.dumps(structure).encode()
    return struct.pack("<II", len(text), len(data)) + text + data


@pytest.mark.parametrize(
    "structure, data",
    [
        (["array", "float64", [2**40]], b""),
        (["array", "float64", [0, 2**24 + 1]], b""),
        (["array", "object", [1]], bytes(8)),
        (["array", "O", [1]], bytes(8)),
        (["array", ["float64"], [1]], bytes(8)),
        (["array", "float64", [1]], bytes(7)),
        (["array", "float64", [1]], bytes(9)),
        (["array", "float64", [0, 2**20, 2**20]], b""),
        (["array", "float64", [2**63, 2]], b""),
        (["array", "float64"], bytes(8)),
        (["scalar", "float64"], b""),
        (["scalar", "float64", 1], bytes(8)),
        (["complex", 1.0], b""),
        (["complex", 1.0, 2], b""),
        (["complex", "1", "2"], b""),
        (["array", "float64", [0, 2**60]], b""),
        (["dict", [["list"], 1]], b""),
        (["dict", [["tuple"], 1]], b""),
        (["dict", 1], b""),
        (["dict", [1, 2, 3]], b""),
        (["pickle", "int8"], b"1"),
        ([], b""),
        ({"a": 1}, b""),
        ({"list": 1}, b""),
        ([1, 2], b""),
        (b"[" * 10**5, b""),
        (b"\xff", b""),
        (b"", b""),
        (["dict", [2**63, 0]], b""),
        (b"1" * 1001, b""),
        (b"9" * 10**5, b""),
        (["list"] + [0] * 10**5, b""),
        (b"null", b"left over"),
        (nested(20, lambda v: ["list", v]), b""),
        (nested(20, lambda v: ["dict", [0, v]]), b""),
    ],
    ids=range(35),
)
def test_what_is_no_message(structure, data):
    with pytest.raises(wire.WireError):
        wire.decode(frame(structure, data))


def test_numbers_at_the_bounds():
    """A key of 2^63 and more is refused on either side of 0; of a length that is not there, nothing
    is believed.
    """
    for key in (2**63 - 1, 1 - 2**63, 0.5, True, None):
        assert wire.decode(frame(["dict", [key, 0]])) == {key: 0}
    for key in (2**63, -(2**63)):
        with pytest.raises(wire.WireError, match="a key that is too large"):
            wire.decode(frame(["dict", [key, 0]]))
    for number in (10**1000 - 1, 1 - 10**1000):
        assert wire.decode(wire.encode(number)) == number
        for refused in (
            lambda: wire.encode(number + number // abs(number)),
            lambda: wire.decode(frame(str(number + number // abs(number)).encode())),
        ):
            with pytest.raises(wire.WireError, match="too large"):
                refused()
    for value in (
        nested(19, lambda v: [v]),
        nested(19, lambda v: {0: v}),
        [0] * (10**5 - 1),
        "x" * (10**6 - 2),
        np.zeros(2**24, np.int8),
        np.zeros((0, 2**24)),
        np.zeros([1] * 16),
    ):
        assert same(value, wire.decode(wire.encode(value)))
    for shape, says in [
        *((shape, "no shape") for shape in ([True], [1.0], 1, "", [-1])),
        ([1] * 17, "too large"),
    ]:
        with pytest.raises(wire.WireError, match=says):
            wire.decode(frame(["array", "float64", shape], bytes(8)))
    for length in (0, 8):
        with pytest.raises(wire.WireError, match="of the wrong length"):
            wire.decode(struct.pack("<II", 4, length) + b"null" + bytes(8 - length))


def test_sizes_are_compared_before_anything_is_read():
    for sizes in ((2**32 - 1, 0), (0, 2**32 - 1), (10**6 + 1, 0), (0, 2**24 + 1)):
        with pytest.raises(wire.WireError):
            wire.sizes(struct.pack("<II", *sizes))
    assert wire.sizes(struct.pack("<II", 10**6, 2**24)) == (10**6, 2**24)


def test_odd_bytes_become_ordinary_values():
    assert wire.decode(frame(["array", "bool", [3]], b"\x00\x02\xff")).tobytes() == b"\x00\x01\x01"
    assert (
        wire.decode(frame(b'"\\ud800"')) == "?"
    )  # half a surrogate pair could not be written to a file


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


@st.composite
def changed_by_a_byte(draw):
    data = bytearray(wire.encode(draw(_VALUES)))
    data[draw(st.integers(0, 10**6)) % len(data)] = draw(st.integers(0, 255))
    return bytes(data)


@pytest.mark.slow
@settings(max_examples=800)
@given(
    st.binary(max_size=60)
    | st.builds(frame, _JSON, st.binary(max_size=16))
    | st.builds(frame, st.binary(max_size=30))
    | changed_by_a_byte()
)
def test_garbage_raises_its_own_error_and_nothing_else(data):
    with contextlib.suppress(wire.WireError):
        wire.decode(data)
