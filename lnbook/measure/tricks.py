""":mod:`lnlib.cpu` without one of its measures: a copy of the package is compiled, with one thing
changed.
"""

import functools
import importlib
import pathlib
import tempfile

import lnlib
from normcheck.mistakes.change import changed

_NO_SHARED_LINE = [("prefetch(y, i, D - 1)", "pass"), ("prefetch(dx, i, D - 1)", "pass")]

#: Name -> what to replace in lnlib/cpu/, and by what: wherever it stands, and it must stand there.
#: A streaming store may not begin inside a line, so without a head there is none.
TRICKS = {
    "no-noalias": [("self.state.flags.noalias = True", "pass")],
    "no-head": [
        ("(first_head - i * D) & (line - 1)", "0"),
        ("if far and stop - start >= line:", "if False:"),
    ],
    "no-quarters": [("+ quarters * (PAGE // 4)", "+ 0 * quarters")],
    "no-prefetch": [("return row if far and row < end else 0", "return 0"), *_NO_SHARED_LINE],
    "no-shared-line": _NO_SHARED_LINE,
    "no-streaming": [("if far and stop - start >= line:", "if False:")],
    "float64-sums": [
        ("w_sum = wx_sum = x_sum = gamma.dtype.type(0)", "w_sum = wx_sum = x_sum = 0.0"),
        ("w * xhat)", "np.float64(w) * np.float64(xhat))"),
    ],
}

#: Those that leave forward as it is.
BACKWARD_ONLY = ("float64-sums",)

#: The package by file name.
SOURCE = {
    path.name: path.read_text(encoding="utf-8")
    for path in pathlib.Path(lnlib.__file__).parent.glob("cpu/*.py")
}


def changed_files(changes):
    """The package by file name, with the (old, new) pairs changed; ValueError as
    :func:`normcheck.mistakes.change.changed`.
    """
    texts = dict(SOURCE)
    for old, new in changes:
        places = [file for file, text in texts.items() if old in text] or [
            "kernels.py"
        ]  # where it is then missed
        texts |= {file: changed(texts[file], [(old, new)], times=None) for file in places}
    return texts


@functools.cache
def without(trick):
    """The package ``lnlib.cpu`` without a measure."""
    name, folder = f"cpu_{trick.replace('-', '_')}", pathlib.Path(tempfile.mkdtemp())
    (folder / name).mkdir()
    for file, text in changed_files(TRICKS[trick]).items():
        # Machine code in Numba's cache on disk would outlive the folder.
        (folder / name / file).write_text(text.replace('"cache": True, ', ""), encoding="utf-8")
    lnlib.__path__.append(str(folder))
    return importlib.import_module(f"lnlib.{name}")
