"""Is the gradient of my layer norm right? Point ``normcheck`` at a layer norm or an RMS norm over
the last axis, forward and backward, and print what it says::

    from normcheck import validate
    print(validate((forward, backward)))

The modules, in the order in which a run uses them:

- :mod:`~normcheck.settings` says what the target takes; :mod:`~normcheck.adapters`,
  :mod:`~normcheck.torch_adapter` and :mod:`~normcheck.jax_adapter` call it, each on the arrays of
  one library; :mod:`~normcheck.targets` has what these share.
- :mod:`~normcheck.cases` draws the arrays, :mod:`~normcheck.layouts` lays them out in memory.
- :mod:`~normcheck.checks` calls the target in each case; :mod:`~normcheck.judge` compares with
  exact results, and :mod:`~normcheck.tolerance` derives how large an error may be.
- A failure is made small by :mod:`~normcheck.shrink`, written as a test by :mod:`~normcheck.paste`,
  located by :mod:`~normcheck.where` and named by :mod:`~normcheck.naming`, which looks it up in the
  catalogue of :mod:`normcheck.mistakes`; :mod:`~normcheck.evidence` has where it failed and held.
- :mod:`~normcheck.run` does all this and returns what :mod:`~normcheck.report` describes;
  :mod:`~normcheck.isolate` lets the command ``python -m normcheck`` survive a target that crashes.
"""

from .report import Failure, Report
from .run import Interrupted, assert_valid, validate
from .settings import Settings
from .targets import TargetError

__all__ = [
    "Failure",
    "Interrupted",
    "Report",
    "Settings",
    "TargetError",
    "assert_valid",
    "validate",
]
