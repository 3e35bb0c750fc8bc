"""Import lnlib in a fresh interpreter and print, as JSON, what that loads and changes."""

import json
import locale
import os
import random
import sys
import warnings

import numpy as np  # noqa: E402
import numpy.random  # noqa: E402


def state():
    """Filters, floating-point settings, print options, random states, environment, locale."""
    return repr(
        [
            warnings.filters,
            np.geterr(),
            np.geterrcall(),
            np.get_printoptions(),
            numpy.random.get_state(),
            random.getstate(),
            sorted(os.environ.items()),
            os.getcwd(),
            sys.path,
            sys.getrecursionlimit(),
            locale.setlocale(locale.LC_ALL),
            sys.get_int_max_str_digits(),
        ]
    )


np.set_printoptions(threshold=10**6)  # so that repr shows a random state in full
before, loaded = state(), set(sys.modules)
import lnlib  # noqa: E402, F401

print(
    json.dumps(
        {
            "loaded": sorted(set(sys.modules) - loaded),
            "unchanged": state() == before,
            "state": len(before),
        }
    )
)
