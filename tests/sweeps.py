"""Which cases of tables are left out where not all tests are run."""

import zlib
from collections import defaultdict

#: Of a test with more cases make check tries so many, and make test too where the test is marked as
#: a sweep.
CASES = 6


def sweeps(names):
    """Of the names of tests those that are left out: of each table all but a few cases, the same
    every time.

    Which they are is seen in a case's own name alone, so that a new case changes one other at most.
    """
    tables = defaultdict(list)
    for name in names:
        tables[name.partition("[")[0]].append(name)
    return {
        name
        for table in tables.values()
        for name in sorted(table, key=lambda name: zlib.crc32(name.encode()))[CASES:]
    }
