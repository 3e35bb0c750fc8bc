"""Is the gradient of my layer norm right? Point ``normcheck`` at a layer norm, an RMS norm or a
group norm, forward and backward, and print what it says::

    from normcheck import validate
    print(validate((forward, backward)))

``README.md`` in this folder says more, also how the package is built.
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
