"""Is the gradient of my layer norm right? Point ``normcheck`` at a layer norm, an RMS norm or a
group norm, forward and backward, and print what it says::

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
  :mod:`~normcheck.isolate` lets a run survive a target that crashes, and
  :mod:`~normcheck.pytest_plugin` makes pytest's test items of it.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .report import Failure, Interrupted, Report
    from .run import assert_valid, validate
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


def __dir__():
    return __all__


def __getattr__(name):
    """One of the names above; it is loaded when it is used, because every pytest imports this."""
    for home in ("settings", "targets", "report", "run") if name in __all__ else ():
        module = importlib.import_module(f".{home}", __name__)
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
