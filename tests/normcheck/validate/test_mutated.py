"""normcheck finds random small changes of two right PyTorch functions; those that change nothing
are told by hand.
"""

import linecache
import random
from pathlib import Path

import mutate
import pytest
from pages import BOOK

from normcheck import TargetError
from normcheck.adapters import adapt
from normcheck.cases import all_cases
from normcheck.checks import CONDITIONAL_ON_NUMBERS, check, plain
from normcheck.run import ordinary_digits
from normcheck.settings import Settings

pytestmark = pytest.mark.slow
SOURCES = Path(__file__).with_name("mutated.py"), BOOK / "examples/layer_norm_torch.py"
COUNT, SEED = 100, 2026

#: What draws may contain that is no mistake, and why.
EQUIVALENT = {
    "LayerNorm.backward: stop = min(start + 64, rows) -> stop = min(rows, start + 64)": (
        "the smaller of the two"
    ),
    "LayerNorm.forward: d = x - x.mean(-1, keepdim=True) -> d = (x + x.mean(-1, keepdim=True))": (
        "centred after it"
    ),
    "LayerNorm.forward: c = d - d.mean(-1, keepdim=True) -> c = (d + d.mean(-1, keepdim=True))": (
        "centred before it"
    ),
    **{
        f"LayerNorm.forward: def forward(ctx, x, gamma, beta, eps=1e-5): -> def forward(ctx, x, gamma, beta, eps={e}):": (  # noqa: E501
            "eps is given"
        )
        for e in ("0.01", "1e-08")
    },
    **{
        "LayerNorm.backward: return dx, (dy * xhat).sum_to_size(D), dy.sum_to_size(D), None ->"
        " return " + what: "PyTorch adds up what has more axes than the parameter"
        for what in (
            "dx, (dy * xhat), dy.sum_to_size(D), None",
            "dx, (dy * xhat).sum_to_size(D), dy, None",
        )
    },
}


def target_of(mutant):
    """The adapter of the function that the mutant changes."""
    name = mutant.function.split(".")[0]
    names = {}
    file = f"<{mutant.key}>"
    linecache.cache[file] = len(mutant.source), None, mutant.source.splitlines(True), file
    exec(compile(mutant.source, file, "exec"), names)
    return adapt(
        names[name].apply, Settings("rms_norm" if name == "RMSNorm" else "layer_norm", "torch")
    )


def shown_by(target):
    """The first case that shows something wrong, or None: validate goes through the same, and does
    not stop.
    """
    for case in all_cases(target.settings, target.layouts, target.able):
        if not (case.property in CONDITIONAL_ON_NUMBERS and check(target, plain(case))) and check(
            target, case
        ):
            return case
    return None


def test_a_hundred_mutants(record_property):
    """They run on ordinary rows: what does not, everyone sees."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.set_num_threads(1)
    made = [
        one
        for path in SOURCES
        for *_, make in mutate.mutants("", path.read_text(encoding="utf-8"))
        if (one := make())
    ]
    random.Random(SEED).shuffle(made)
    alive, running, crashed = [], 0, 0
    for mutant in made:
        if mutant.key.strip() in EQUIVALENT or running == COUNT:
            continue
        try:
            target = target_of(mutant)
            ordinary_digits(target, lambda case: None)
        except TargetError:
            crashed += 1
            continue
        running += 1
        if shown_by(target) is None:
            alive.append(mutant.key)
    record_property(
        "measured",
        f"mutants of PyTorch functions found: {running - len(alive)} of {running} that run",
    )
    assert running >= COUNT and len(alive) <= 3, "\n".join(alive)
