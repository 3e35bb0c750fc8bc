"""Which mistake is this? One catalogue of mistakes, one comparator, and three ways to recognise a wrong answer.

In the order in which to read it:

- :mod:`~lnlib.mistakes.entry`: what a mistake is: its name, what is wrong, a question, and a backward or a change of
  the solution.
- :mod:`~lnlib.mistakes.catalogue`: wrong backwards of layer norm, each with one mistake.
- :mod:`~lnlib.mistakes.wild`: bugs that shipped, with the public threads that report them;
  :mod:`~lnlib.mistakes.habits`: what tests do out of habit, and which of these bugs pass;
  :mod:`~lnlib.mistakes.later`: bugs read after that; :mod:`~lnlib.mistakes.conventions`: other norms that people mean.
- :mod:`~lnlib.mistakes.gradient_tests`, :mod:`~lnlib.mistakes.recipes`: tests of a backward, the book's and
  published ones, and which mistakes each kills.
- :mod:`~lnlib.mistakes.families`, :mod:`~lnlib.mistakes.fit`: a wrong backward is told by its terms, also where
  it makes several mistakes.
- :mod:`~lnlib.mistakes.recognise`, :mod:`~lnlib.mistakes.relation`, :mod:`~lnlib.mistakes.slips`: a wrong answer of
  any kind is told by comparison with changes of the solution, written down or made one place at a time, or by how its
  numbers follow from the right ones.
- :mod:`~lnlib.mistakes.explain`: the rule by which a candidate explains a failure, for all of these.
- :mod:`~lnlib.mistakes.compare`, :mod:`~lnlib.mistakes.change`, :mod:`~lnlib.mistakes.diagnosis`: what these share.
"""

from .catalogue import HARMLESS, MUTANTS
from .diagnosis import Diagnosis
from .entry import Mistake, change, changes
from .families import LAYER_NORM, RMS_NORM, Base, Family, outside_family
from .fit import diagnose
from .gradient_tests import TESTS, GradientTest, kill_matrix
from .recipes import RECIPES

__all__ = ["Base", "Diagnosis", "Family", "GradientTest", "HARMLESS", "LAYER_NORM", "MUTANTS", "Mistake", "RECIPES",
           "RMS_NORM", "TESTS", "change", "changes", "diagnose", "kill_matrix", "outside_family"]
