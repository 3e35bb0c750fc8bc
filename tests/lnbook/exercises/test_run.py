"""One runner: a check asks, an answer is called, the check judges."""

import numpy as np
import pytest

from lnbook.exercises import Call, Check, each, expect, unchanged
from lnbook.exercises.run import Raised, here, questions, verdict
from lnlib import layer_norm_forward


def ask(rng):
    return [Call({"x": np.arange(3.0), "n": n}, twice=2 * n) for n in (1, 2)]


def run(check, answer):
    return verdict(check, np.random.default_rng(0), here(answer))


def test_a_judge_is_handed_arguments_and_what_is_known_by_name():
    seen = []
    check = each(
        "each", ask, lambda found, n, twice, x: seen.append((found.sum(), n, twice, x.size))
    )
    assert run(check, lambda x, n: x * n) is None and seen == [(3, 1, 2, 3), (6, 2, 4, 3)]
    assert [call.arguments["n"] for call in questions(check, None)] == [1, 2]


def test_a_call_is_made_when_its_result_is_taken():
    calls = []
    check = each("stops at the first", ask, lambda found, **_: expect(False, "no"))
    assert run(check, lambda x, n: calls.append(n)) == "no" and calls == [1]
    check = Check(
        "all at once", ask, lambda found, asked: expect(len([*found]) == len(asked) == 2, "two")
    )
    assert run(check, lambda x, n: calls.append(n)) is None and calls == [1, 1, 2]


def test_what_an_answer_raises_is_told_from_what_a_judge_raises():
    check = each("shape", ask, lambda found, **_: found.shape)
    zero = "your function raised ZeroDivisionError: division by zero"
    assert run(check, lambda x, n: 1 / 0).startswith(f"{zero}; in its")
    # No line of its own.
    assert run(check, int).startswith("your function raised ValueError: int() base must")
    names = {}
    exec("def unseen(x, n): return 1 / 0", names)  # without its source, no line can be shown
    assert run(check, names["unseen"]) == zero
    assert run(check, lambda x, n: None) == "the result is None; is a return missing?"
    said = "your result is not of the form asked for (AttributeError: 'str' object has no attribute"
    assert run(check, lambda x, n: "text") == f"{said} 'shape')"
    with pytest.raises(NotImplementedError, match="later"):
        run(check, lambda x, n: (_ for _ in ()).throw(NotImplementedError("later")))


def test_what_is_no_verdict_goes_through():
    class Gone(Exception):
        pass

    def make(check, arguments):
        raise Gone

    with pytest.raises(Gone):
        verdict(each("gone", ask, lambda found, **_: None), None, make)

    def told(check, arguments):
        raise Raised("KindError", "text", "your function raised something")

    raised = each("raised", ask, lambda found, **_: None)
    assert verdict(raised, None, told) == "your function raised something"


def test_an_answer_works_on_copies_and_may_not_change_them_where_that_is_asked():
    def spoils(x, n):
        x *= n
        return x

    again = each(
        "its own copy", ask, lambda found, x, n, **_: expect((x == np.arange(3)).all(), "spoiled")
    )
    assert run(again, spoils) is None
    left_alone = unchanged("x is left alone", ask)
    assert run(left_alone, spoils) == "your function changed its argument x; work on new arrays"
    assert run(left_alone, lambda x, n: 2 * x) is None
    _, cache = layer_norm_forward(np.arange(3.0), np.ones(3), np.zeros(3))
    caches = unchanged("the cache is left alone", lambda rng: Call({"cache": cache}))
    assert "argument cache" in run(caches, lambda cache: cache.xhat.fill(0))
    lists = unchanged("a list is left alone", lambda rng: Call({"values": [1, 2], "rng": rng}))
    assert "argument values" in run(lists, lambda values, rng: values.reverse())
    assert run(lists, lambda values, rng: rng.random()) is None
