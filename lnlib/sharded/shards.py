"""Who has which rows or features: cuts of a whole among ranks."""

from .. import validation


def cut(count: int, ranks: int, block: int = 1) -> list[slice]:
    """Slices of ``count`` rows or features for each rank, as even as whole blocks allow."""
    validation.require_count("count", count, least=0)
    validation.require_count("ranks", ranks)
    blocks = -(-count // validation.require_count("block", block))
    edges = [min(count, (rank * blocks // ranks) * block) for rank in range(ranks + 1)]
    return [slice(start, stop) for start, stop in zip(edges, edges[1:])]


def widths(*counts: int) -> list[slice]:
    """Slices of these many rows or features, one a rank, in order; 0 is an empty shard."""
    counts = [validation.require_count("counts", n, least=0) for n in counts]
    return [slice(sum(counts[:k]), sum(counts[: k + 1])) for k in range(len(counts))]
