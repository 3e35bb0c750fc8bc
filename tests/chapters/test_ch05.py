"""Chapter 5: its exercises tell weak answers from good ones, its figure shows the matrix it is given."""

import matplotlib
import numpy as np
import pytest
from attempts import failed

matplotlib.use("agg")

from lnlib import plots  # noqa: E402
from lnlib.exercises import ch05  # noqa: E402
from lnlib.layernorm import rms_norm_forward  # noqa: E402
from lnlib.mistakes import HARMLESS, MUTANTS  # noqa: E402


@pytest.mark.parametrize("mutant", MUTANTS + HARMLESS, ids=lambda m: m.name)
def test_survivor_is_judged_by_the_catalogue(mutant):
    # A mutant is an answer exactly if its entry says so.
    killers = {"sum-dx-zero", "dx-orthogonal-xhat", "gamma-one"} & mutant.killed_by
    assert (failed("survivor", mutant.backward) is None) == (not killers and "adjoint" in mutant.killed_by)


@pytest.mark.parametrize("answer, description", [(True, "rejects a wrong projection"), (False, "accepts right backwards")])
def test_constant_verdicts(answer, description):
    assert failed("write-the-test", lambda backward: answer) == description


def test_rms_mutants_are_wrong_and_different():
    rng = np.random.default_rng(1)
    x, dy = rng.standard_normal((2, 3, 4, 7))
    _, cache = rms_norm_forward(0.01 * x, rng.standard_normal(7))
    groups = [ch05.RMS_RIGHT, *ch05.RMS_MUTANTS.values()]
    results = [backward(dy, cache) for group in groups for backward in group.values()][1:]  # the two right ones agree

    def same(a, b):
        return all(u.shape == v.shape and np.allclose(u, v, rtol=1e-6) for u, v in zip(a, b))

    assert not any(same(a, b) for i, a in enumerate(results) for b in results[:i])


def test_coefficients_tell_mistakes_apart():
    assert failed("read-the-mistake", lambda dx, dy, cache: np.array([1.0, -1, -1])) == "projection-halved"


def test_kill_matrix_figure():
    killed = np.array([[False, True, True], [False, False, True]])
    fig = plots.kill_matrix(killed[:, [1, 2, 0]], ["strong", "weak"], ["some", "all", "none"])
    ax = fig.axes[0]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["none  0", "some  1", "all  2"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["strong  2", "weak  1"]
    assert (ax.collections[0].get_array().reshape(2, 3) == killed).all()
    matplotlib.pyplot.close(fig)
