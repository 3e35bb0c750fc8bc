"""Which mistake is this? One catalogue of mistakes, and one rule by which they are
recognised.

In the order in which to read it:

- :mod:`~normcheck.mistakes.change`: what a mistake is; a text or a function with some of its lines
  changed. :mod:`~normcheck.mistakes.formula`: the formula of dx, and what mistakes change in it.
- :mod:`~normcheck.mistakes.catalogue`: wrong backwards of layer norm, each with one mistake.
- :mod:`~normcheck.mistakes.wild`: bugs that shipped, with the public threads that report them;
  :mod:`~normcheck.mistakes.conventions`: other norms that people mean.
- :mod:`~normcheck.mistakes.recognise`: the rule by which a mistake explains a failure, and a wrong
  answer of any kind beside changes of the solution; :mod:`~normcheck.mistakes.fit`: a wrong
  backward beside the formula of dx with one mistake, or two.
"""

from .catalogue import HARMLESS, MUTANTS
from .change import Mistake, change
from .fit import LAYER_NORM, RMS_NORM, Family, diagnose, outside_family
from .formula import Formula
from .recognise import Diagnosis

__all__ = [
    "Diagnosis",
    "Family",
    "Formula",
    "HARMLESS",
    "LAYER_NORM",
    "MUTANTS",
    "Mistake",
    "RMS_NORM",
    "change",
    "diagnose",
    "outside_family",
]
