r"""What is sent: counted, predicted, and what a model makes of it.

Predictions are lists of :class:`~lnlib.sharded.messages.Message`, as a log of a run has them.
``counts`` are the rows or features of each rank; ``block`` is that of a reproducible run, else
None. Bytes are those a rank *brings*: what a network carries depends on how the MPI library
combines them. Arguments are not checked.
"""

from collections.abc import Sequence

from ..norms import NORMS
from .messages import GATHER, HEADER, SAME, SUM, Message

ITEM = 8  # float64
#: Numbers a row and part where features are sharded, forward and backward, by norm.
COLUMNS = {"layer": (4, 5), "rms": (2, 2)}


def parts(count: int, block: int | None = None) -> int:
    """Parts of a shard of ``count`` features or rows: blocks, or the shard unless it is empty."""
    return -(-count // block) if block else int(count > 0)


def features(
    counts: Sequence[int], rows: int, norm: str = "layer", block: int | None = None
) -> list[Message]:
    """Messages of both passes, features sharded: ``rows`` in range, and ``counts`` of features."""
    sent = [tuple(ITEM * k * rows * parts(n, block) for n in counts) for k in COLUMNS[norm]]
    return [Message(SAME, (0,) * len(counts)), *(Message(GATHER, each) for each in sent)]


def rows(
    counts: Sequence[int], D: int, norm: str = "layer", block: int | None = None
) -> list[Message]:
    """The messages of both passes, rows sharded: ``counts`` of rows, D features."""
    numbers = (1 + NORMS[f"{norm}_norm"].beta) * D  # the sums of dgamma and, if any, dbeta
    if block:
        sums = Message(GATHER, tuple(ITEM * (1 + numbers) * parts(n, block) for n in counts))
    else:
        sums = Message(SUM, (ITEM * numbers,) * len(counts))
    return [Message(SAME, (0,) * len(counts)), sums]


def total(messages: Sequence[Message]) -> tuple[int, int]:
    """(bytes that all ranks brought, bytes of announcements, with the end's) of messages."""
    ranks = len(messages[0].sent) if messages else 0
    return sum(sum(m.sent) for m in messages), HEADER * ranks * (len(messages) + 1)


def seconds(message: Message, alpha: float, beta: float) -> float:
    r"""A *model* of the time of one message among P ranks: :math:`\lceil\log_2 P\rceil\,\alpha` for
    its steps, and :math:`\beta` seconds a byte for what passes through one rank.

    A sum of n bytes is scattered and gathered, :math:`2 (P - 1)/P\, n` and twice the steps; of a
    gather each rank receives what the others brought. A message that only sends announcements is
    neither sum nor gather: leave it out. Thakur, Rabenseifner and Gropp, *Optimization
    of Collective Communication Operations in MPICH*, International Journal of High Performance
    Computing Applications 19(1), 2005.
    """
    ranks = len(message.sent)
    steps = (ranks - 1).bit_length()
    if message.operation == GATHER:
        return steps * alpha + (sum(message.sent) - min(message.sent)) * beta
    return 2 * steps * alpha + 2 * (ranks - 1) / ranks * message.sent[0] * beta
