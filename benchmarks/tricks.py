""":mod:`lnlib.cpu` without one of its measures: the module is compiled again from its text, with one thing changed."""

import functools
import pathlib
import sys
import types

#: Name -> what to replace in lnlib/cpu.py, and by what: wherever it stands, and it must stand there.
TRICKS = {
    "no-noalias": {"self.state.flags.noalias = True": "pass"},
    "no-head": {"head = (first_head - i * D) & (line - 1)": "head = 0"},
    "no-prefetch": {"        _prefetch(array, i, j)\n": "        pass\n"},
    "no-tiles": {"WIDE_ROW = 8192": "WIDE_ROW = 2**60"},
    "float32-sums": {"w_sum = wx_sum = c_sum = 0.0": "w_sum = wx_sum = c_sum = first - first",
                     "np.float64(w) * np.float64(c)": "w * c"},
}

#: Those that leave forward as it is.
BACKWARD_ONLY = ("no-prefetch", "no-tiles", "float32-sums")


def changed(text, replacements):
    """``text`` with replacements; ValueError if one of them would change nothing."""
    for old, new in replacements.items():
        if old not in text:
            raise ValueError(f"TRICKS: found no {old!r} in lnlib/cpu.py, expected the text to replace")
        text = text.replace(old, new)
    # What comes from a text has no file that Numba's cache on disk could belong to.
    return text.replace("cache=True, ", "")


@functools.cache
def without(trick):
    """The module ``lnlib.cpu`` without a measure."""
    from lnlib import cpu

    source = pathlib.Path(cpu.__file__)
    module = types.ModuleType(f"lnlib.cpu_{trick.replace('-', '_')}")
    module.__package__ = "lnlib"
    sys.modules[module.__name__] = module  # Numba looks there for the globals of a function
    exec(compile(changed(source.read_text(encoding="utf-8"), TRICKS[trick]), f"<{trick}>", "exec"), module.__dict__)
    return module
