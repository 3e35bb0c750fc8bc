"""Are the contestants of the GPU benchmark right? Judged by float64, and by a hundred runs."""

from functools import partial

from lnbook.measure.provenance import digits

from .contestants import EPS, LADDER, PASSES, Case, arrays

# Correctness: rows and lengths that fit nothing, and rows too long for the registers of a block.
RAGGED = ((1, 1), (7, 3), (33, 100), (130, 1027), (257, 768), (64, 4096), (9, 20000))
SOME_RAGGED = ((33, 100), (130, 1027), (9, 20000))
REPEATED = ((8192, 1024), (1000, 1027))
RUNS = 100


def exact(which, a, centred=True):
    """The results in float64; of RMS norm, if not ``centred``."""
    x, gamma, beta, dy = (t.double() for t in a)
    x = x - x.mean(1, keepdim=True) if centred else x
    rstd = (x.square().mean(1, keepdim=True) + EPS).rsqrt()
    xhat = x * rstd
    if which == "forward":
        return (xhat * gamma + beta,)
    g = gamma * dy
    mean = g.mean(1, keepdim=True) if centred else 0
    dx = rstd * (g - mean - xhat * (g * xhat).mean(1, keepdim=True))
    return dx, (dy * xhat).sum(0), dy.sum(0)


def results(which, returned):
    """The tensors to be judged: y, or dx, dgamma and dbeta."""
    if which == "forward":
        return (returned[0] if isinstance(returned, (tuple, list)) else returned,)
    return tuple(returned[:3])


def relative_error(found, expected):
    """Relative L2 error; the norm of what was found where all should be 0."""
    norm = float(expected.norm())
    return float((found.double().view(expected.shape) - expected).norm()) / (norm or 1.0)


def tolerance(dtype, precise):
    """What a relative error may be: a rounding of the result, and a hundredth for float64 inside.

    Arithmetic in float32 gets 1e-5, about 170 roundings: enough for these rows, and less than a
    wrong kernel's error.
    """
    rounding = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    return 1.01 * rounding + (0 if precise else 1e-5)


def poison(a):
    """Leave NaN in memory that the next results get: PyTorch hands out freed blocks again."""
    import torch

    blocks = [torch.full_like(t, float("nan")) for t in a for _ in range(2)]
    blocks += [torch.full((a.x.shape[0] * 4,), float("nan"), device="cuda") for _ in range(2)]
    del blocks


def correctness_cases(quick):
    """Cases, and the families that take part in them."""
    cheap = ("pytorch", "triton", "lnlib")
    for which in PASSES:
        for shape in SOME_RAGGED if quick else RAGGED:
            some = ("precise",) if shape in SOME_RAGGED else ()
            yield Case(shape, "float32", which), (*cheap, *some, *LADDER)
        for shape in SOME_RAGGED:
            for dtype in ("float16", "bfloat16"):
                yield Case(shape, dtype, which), (*cheap, "precise")
        # No row begins at 16 bytes.
        yield Case((33, 100), "float32", which, offset=1), ("lnlib", "precise")


def judged(case, a, calls, expected, read, **fields):
    """A record of each call: the errors of what ``read(call())`` has, against float64."""
    for name, call in calls.items():
        poison(a)
        found = [relative_error(*pair) for pair in zip(read(call()), expected)]
        limit = tolerance(case.dtype, name == "lnlib-precise")
        record = {"section": "correctness", **case._asdict(), "implementation": name, **fields}
        record |= {"errors": [digits(e) for e in found], "limit": digits(limit)}
        yield record | {"ok": all(e <= limit for e in found)}  # NaN is not


def correctness(work):
    """Errors against float64, and whether a hundred runs give the same bits."""
    for case, families in correctness_cases(work.quick):
        a, read = arrays(case), partial(results, case.which)
        yield list(judged(case, a, work.calls(case, a, families), exact(case.which, a), read))
    for shape in REPEATED:
        case = Case(shape, "float32", "backward")
        calls = work.calls(case, arrays(case), ("pytorch", "triton", "lnlib", "precise", *LADDER))
        fields = {"section": "repeated", **case._asdict(), "runs": RUNS}
        same = {name: same_bits(call) for name, call in calls.items()}
        yield [{**fields, "implementation": name, "same": same[name]} for name in same]


def same_bits(call):
    """How many of some runs of a backward pass give the bits of one before."""
    import torch

    first = results("backward", call())
    return sum(all(map(torch.equal, results("backward", call()), first)) for _ in range(RUNS))
