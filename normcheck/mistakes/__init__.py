"""Which mistake is this? One catalogue of mistakes, and one rule by which they are recognised."""

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
