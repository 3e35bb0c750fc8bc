"""The one rule of naming: what it takes for a known mistake to explain a failure."""


def explaining(candidates, right, same, fails):
    """Yield those of ``candidates`` that explain a failure.

    A candidate explains it if it gives the same numbers, and fails what was failed, and the right
    answer does not: that one must neither give these numbers nor fail. Otherwise the numbers say
    nothing about the failure, and no candidate is named: a missing name costs little, a wrong one
    much.

    ``same(one)`` says whether ``one`` gives the numbers of the answer in question, ``fails(one)``
    whether it fails what the answer failed; ``right`` is the right answer, of the same kind as the
    candidates.
    """
    if same(right) or fails(right):
        return
    for candidate in candidates:
        if same(candidate) and fails(candidate):
            yield candidate
