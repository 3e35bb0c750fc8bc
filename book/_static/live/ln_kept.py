"""Runs in Pyodide, in the worker of live cells: what Python compiled is kept, so that no page
compiles it again.

Packages come without compiled code, and to compile takes a browser longer than to run what an
import runs.
"""

import _imp
import marshal
import sys
import zipimport
from importlib import _bootstrap_external

_codes = {}  # path of a module: (hash of its source, its code, marshalled)
_fresh = {}  # the same of what was compiled here, with the code itself


def _code(path, source, compiled):
    stamp = _imp.source_hash(0, source)
    known = _codes.get(path)
    if known and known[0] == stamp:
        return marshal.loads(known[1])
    code = compiled()
    _fresh[path] = stamp, code
    return code


def begin(data):
    """Once, first. data: what ``keep`` gave the same Python on an earlier page, or None."""
    _codes.update(marshal.loads(data) if data else ())
    sys.dont_write_bytecode = True  # of files that end with the page
    loader, in_zip = _bootstrap_external.SourceLoader.source_to_code, zipimport._compile_source

    def source_to_code(self, data, path, **options):
        return _code(path, data, lambda: loader(self, data, path, **options))

    _bootstrap_external.SourceLoader.source_to_code = source_to_code
    zipimport._compile_source = lambda path, source: _code(
        path, source, lambda: in_zip(path, source)
    )


def keep():
    """What to hand to ``begin`` on the next page, as bytes; None where it is what ``begin`` had."""
    if not _fresh:
        return None
    _codes.update((path, (stamp, marshal.dumps(code))) for path, (stamp, code) in _fresh.items())
    _fresh.clear()
    return marshal.dumps(_codes)
