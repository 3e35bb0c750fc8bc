"""Validate your own: any layer norm or RMS norm over the last axis, forward and backward::

    from normcheck import validate
    print(validate((forward, backward)))

In the order in which to read it:

- :mod:`~normcheck.settings`: what the caller says about the target.
- :mod:`~normcheck.cases`, :mod:`~normcheck.layouts`: what is tried, and where it lies in memory.
- :mod:`~normcheck.targets`, :mod:`~normcheck.adapters`, :mod:`~normcheck.torch_adapter`,
  :mod:`~normcheck.jax_adapter`, :mod:`~normcheck.device_adapter`: targets of several kinds, each
  made to look the same.
- :mod:`~normcheck.tolerance`, :mod:`~normcheck.judge`: what rounding may do, and the distance from
  the exact result.
- :mod:`~normcheck.checks`: what is asked of a target in a case.
- :mod:`~normcheck.shrink`, :mod:`~normcheck.paste`: the smallest case that shows a failure, as a
  test.
- :mod:`~normcheck.where`: which widths, rows, layouts or dtypes failed.
- :mod:`~normcheck.naming`: which known mistake it is.
- :mod:`~normcheck.run`, :mod:`~normcheck.report`: the run, and what is said of it.
- :mod:`~normcheck.isolate`: a target that crashes or hangs, watched from outside. The command line
  is __main__.
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
