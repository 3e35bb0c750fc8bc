"""Validate your own: any layer norm or RMS norm over the last axis, forward and backward::

    from lnlib.validate import validate
    print(validate((forward, backward)))

In the order in which to read it:

- :mod:`~lnlib.validate.settings`: what the caller says about the target.
- :mod:`~lnlib.validate.cases`, :mod:`~lnlib.validate.layouts`: what is tried, and where it lies in memory.
- :mod:`~lnlib.validate.targets`, :mod:`~lnlib.validate.adapters`, :mod:`~lnlib.validate.torch_adapter`,
  :mod:`~lnlib.validate.jax_adapter`, :mod:`~lnlib.validate.device_adapter`: targets of several kinds, each made to
  look the same.
- :mod:`~lnlib.validate.tolerance`, :mod:`~lnlib.validate.judge`: what rounding may do, and the distance from the exact
  result.
- :mod:`~lnlib.validate.checks`: what is asked of a target in a case.
- :mod:`~lnlib.validate.shrink`, :mod:`~lnlib.validate.paste`: the smallest case that shows a failure, as a test.
- :mod:`~lnlib.validate.where`: which widths, rows, layouts or dtypes failed.
- :mod:`~lnlib.validate.naming`: which known mistake it is.
- :mod:`~lnlib.validate.run`, :mod:`~lnlib.validate.report`: the run, and what is said of it.
- :mod:`~lnlib.validate.isolate`: a target that crashes or hangs, watched from outside. The command line is __main__.
"""

from .report import Failure, Report
from .run import Interrupted, assert_valid, validate
from .settings import Settings
from .targets import TargetError

__all__ = ["Failure", "Interrupted", "Report", "Settings", "TargetError", "assert_valid", "validate"]
