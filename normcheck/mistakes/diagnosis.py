"""What is said of a wrong answer."""

from typing import NamedTuple


class Diagnosis(NamedTuple):
    """Which mistake a wrong answer makes.

    * ``kind``: "known" (an entry, exactly), "one of" (entries that agree), "combination",
      "nearest", or "precision" (float64 comes with the digits of float32); of an exercise's own
      mistakes also "may be" (no more than what the check said agrees). "relation": no mistake
      agrees, but the numbers are 1.1 times the right ones, say; "slip": they are those of the
      solution with one small change, which is told by its kind. "error": none agrees, but the
      exception that a kernel ended with has a meaning of its own. Of a layer norm that is
      validated: "convention" (its y is that of another norm, such as one with 1 + gamma), "state"
      (its numbers depend on earlier calls, too).
    * ``names``: the names of the mistakes, of the alternatives if ``kind`` is "one of".
    * ``sentence``: str for its author; also what ``str`` gives.
    * ``because``: lines for authors and instructors: which entry or fit, which coefficients, what
      was refuted.
    """

    kind: str
    names: tuple
    sentence: str
    because: tuple = ()

    def __str__(self):
        return self.sentence
