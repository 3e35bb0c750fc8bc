"""Import lnlib in a fresh interpreter and print, as JSON, what that loads, changes and costs."""

import json
import locale
import os
import random
import sys
import time
import warnings

start = time.perf_counter()
import numpy as np  # noqa: E402
import numpy.random  # noqa: E402

middle = time.perf_counter()


def state():
    """Warnings filters, floating-point settings, print options, both random states, environment, locale."""
    return repr([warnings.filters, np.geterr(), np.geterrcall(), np.get_printoptions(), numpy.random.get_state(),
                 random.getstate(), sorted(os.environ.items()), os.getcwd(), sys.path, sys.getrecursionlimit(),
                 locale.setlocale(locale.LC_ALL), sys.get_int_max_str_digits()])


np.set_printoptions(threshold=10**6)  # so that repr shows a random state in full
before, loaded, ready = state(), set(sys.modules), time.perf_counter()
import lnlib  # noqa: E402, F401

done = time.perf_counter()
print(json.dumps({"loaded": sorted(set(sys.modules) - loaded), "unchanged": state() == before, "state": len(before),
                  "numpy_seconds": middle - start, "seconds": done - ready}))
