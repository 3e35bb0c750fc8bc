"""What a kernel may use: a corpus of small kernels, each taken or refused, and the lists by which
it is decided.

That Numba's compiler decides the same way is tested in tests/ptx/test_compiled.py, where
there is one.
"""

import corpus
import pytest

import simt


def run(name):
    arguments = corpus.arguments()
    simt.launch(corpus.kernel(corpus.BODIES[name]), 1, 32, *arguments)
    return arguments


@pytest.mark.parametrize("name", [*corpus.TAKEN, *corpus.LAXER])
def test_taken(name):
    run(name)


@pytest.mark.parametrize("name", ["bits", "division of integers", "comparisons in a chain"])
def test_integers_are_those_of_python(name):
    _, _, z, n = run(name)
    exec(corpus.BODIES[name], named := {"n": n, "t": 0, "z": [0]})
    assert (z == named["z"][0]).all()


@pytest.mark.parametrize("name", [*corpus.REFUSED, *corpus.STRICTER])
def test_refused(name):
    with pytest.raises(simt.Refused) as error:
        run(name)
    if name in corpus.REFUSED:
        line, said = corpus.refusal(corpus.REFUSED[name])
        assert said in str(error.value)
        assert f"line {error.value.line}" in str(error.value)
        further_in = "(line" in str(error.value) and " of kernel)" not in str(error.value)
        assert error.value.line == line or further_in


@pytest.mark.parametrize("name", corpus.STOPPED)
def test_stopped_when_it_runs(name):
    _, _, error = corpus.STOPPED[name].rpartition("# ")
    with pytest.raises(getattr(simt, error)):
        run(name)
