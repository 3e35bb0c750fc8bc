"""Which cases of long tables are left to make test."""

import zlib
from collections import defaultdict

#: Of a test with more cases than this make check tries so many; make test tries all.
CASES_OF_A_CHECK = 6


def sweeps(names):
    """Of the names of tests those that make check leaves out: of each table all but a few cases, the same every time.

    Which they are is seen in a case's own name alone, so that a new case changes one other at most.
    """
    tables = defaultdict(list)
    for name in names:
        tables[name.partition("[")[0]].append(name)
    return {name for table in tables.values()
            for name in sorted(table, key=lambda name: zlib.crc32(name.encode()))[CASES_OF_A_CHECK:]}
