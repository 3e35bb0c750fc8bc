"""Which mistake is this? One catalogue of mistakes, one comparator, and three ways to recognise a wrong answer.

In the order in which to read it:

- :mod:`.entry`: what a mistake is: its name, what is wrong, a question, and a backward or a change of the solution.
- :mod:`.catalogue`: wrong backwards of layer norm, each with one mistake.
- :mod:`.gradient_tests`, :mod:`.recipes`: tests of a backward, the book's and published ones, and which mistakes each
  kills.
- :mod:`.families`, :mod:`.fit`: a wrong backward is told by its terms, also where it makes several mistakes.
- :mod:`.recognise`, :mod:`.relation`: a wrong answer of any kind is told by comparison with changes of the solution, or
  by how its numbers follow from the right ones.
- :mod:`.compare`, :mod:`.change`, :mod:`.diagnosis`: what these share.
"""

from .catalogue import HARMLESS, MUTANTS
from .diagnosis import Diagnosis
from .entry import Mistake, change
from .families import LAYER_NORM, RMS_NORM, Base, Family, outside_family
from .fit import diagnose
from .gradient_tests import TESTS, GradientTest, kill_matrix
from .recipes import RECIPES

__all__ = ["Base", "Diagnosis", "Family", "GradientTest", "HARMLESS", "LAYER_NORM", "MUTANTS", "Mistake", "RECIPES",
           "RMS_NORM", "TESTS", "change", "diagnose", "kill_matrix", "outside_family"]
