"""Which mistake is this? One catalogue of mistakes, one comparator, and three ways to recognise a
wrong answer.

In the order in which to read it:

- :mod:`~normcheck.mistakes.entry`: what a mistake is: its name, what is wrong, a question, and a
  backward or a change of the solution.
- :mod:`~normcheck.mistakes.catalogue`: wrong backwards of layer norm, each with one mistake;
  :mod:`~normcheck.mistakes.entries`: these, and mistakes that only numbers tell.
- :mod:`~normcheck.mistakes.wild`: bugs that shipped, with the public threads that report them;
  :mod:`~normcheck.mistakes.habits`: what tests do out of habit, and which of these bugs pass;
  :mod:`~normcheck.mistakes.later`: bugs read after that; :mod:`~normcheck.mistakes.conventions`:
  other norms that people mean.
- :mod:`~normcheck.mistakes.gradient_tests`, :mod:`~normcheck.mistakes.recipes`: tests of a
  backward, the book's and published ones, and which mistakes each kills.
- :mod:`~normcheck.mistakes.families`, :mod:`~normcheck.mistakes.fit`: a wrong backward is told by
  its terms, also where it makes several mistakes.
- :mod:`~normcheck.mistakes.recognise`, :mod:`~normcheck.mistakes.relation`,
  :mod:`~normcheck.mistakes.slips`: a wrong answer of any kind is told by comparison with changes of
  the solution, written down or made one place at a time, or by how its numbers follow from the
  right ones.
- :mod:`~normcheck.mistakes.explain`: the rule by which a candidate explains a failure, for all of
  these.
- :mod:`~normcheck.mistakes.compare`, :mod:`~normcheck.mistakes.change`,
  :mod:`~normcheck.mistakes.diagnosis`: what these share.
"""

from .catalogue import HARMLESS, MUTANTS
from .diagnosis import Diagnosis
from .entry import Mistake, change
from .families import LAYER_NORM, RMS_NORM, Base, Family, outside_family
from .fit import diagnose
from .gradient_tests import TESTS, GradientTest, kill_matrix
from .recipes import RECIPES

__all__ = [
    "Base",
    "Diagnosis",
    "Family",
    "GradientTest",
    "HARMLESS",
    "LAYER_NORM",
    "MUTANTS",
    "Mistake",
    "RECIPES",
    "RMS_NORM",
    "TESTS",
    "change",
    "diagnose",
    "kill_matrix",
    "outside_family",
]
