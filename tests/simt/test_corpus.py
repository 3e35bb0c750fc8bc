"""What a kernel may use: a corpus of small kernels, each taken or refused, and the lists by which
it is decided.

That Numba's compiler decides the same way is tested in tests/ptx/test_compiled.py, where
there is one.
"""

import itertools
import re
from pathlib import Path

import corpus
import numpy as np
import pytest
from golden import compare

import simt

SAID = Path(__file__).with_name("said.txt")


def run(name, **options):
    arguments = corpus.arguments()
    ran = simt.launch(corpus.kernel(corpus.BODIES[name]), 1, 32, *arguments, **options)
    return *arguments, ran


@pytest.mark.parametrize("name", [*corpus.TAKEN, *corpus.LAXER])
def test_taken(name):
    """Numbers in y and z, each with how often it comes; then what thread 1 has done first."""
    run(name)
    _, y, z, _, ran = run(name, log=True)
    lines = [[f"{v:.6g}x{len([*some])}" for v, some in itertools.groupby(a)] for a in (y, z)]
    done = [a[2:7] + a[9:] for a in ran.accesses if a.thread == 1][:9]
    done += [event[2:3] + event[4:] for event in ran.events if event[1] == 1][:9]
    real = float, np.floating
    lines += [[f"{v:.6g}" if isinstance(v, real) else str(v) for v in one] for one in done]
    compare(SAID, name, "\n".join(map(" ".join, lines)))


@pytest.mark.parametrize("name", [*corpus.REFUSED, *corpus.STRICTER])
def test_refused(name):
    with pytest.raises(simt.Refused) as error:
        run(name)
    message = re.sub(r"line \d+ of (?!kernel)", "line # of ", str(error.value))
    compare(SAID, name, message)
    if name in corpus.REFUSED:
        line, said = corpus.refusal(corpus.REFUSED[name])
        assert said in message and (error.value.line == line or "line #" in message)


def test_the_lists_as_text():
    lines = [f"{what}: {' '.join(names)}" for what, names in simt.allowed.words().items()]
    compare(SAID, "what a kernel may use", "\n".join(lines))


@pytest.mark.parametrize("name", corpus.STOPPED)
def test_stopped_when_it_runs(name):
    _, _, error = corpus.STOPPED[name].rpartition("# ")
    with pytest.raises(getattr(simt, error)) as info:
        run(name)
    compare(SAID, name, str(info.value))
