"""A slip on a command line is told at once: the option, what was found and what was expected, and
nothing is run.

The command of ``normcheck`` has its tests in ``validate``, the grader's in ``classroom``.
"""

import importlib
import os
import re

import pytest

#: (module, arguments, what the last line says, a regular expression); FILE is a path in a folder
#: that is a file.
WRITTEN = "found .*, expected a file that can be written"
FEATURES = "expected 1 to 1024, the number of features"
SLIPS = [
    ("lnbook.measure.__main__", "--rounds 0", "--rounds: found 0, expected at least 1"),
    ("lnbook.measure.__main__", "--seconds nan", "--seconds: found nan, expected more than 0"),
    ("lnbook.measure.__main__", "--folder FILE", f"--folder: {WRITTEN}"),
    ("lnlib.sharded.__main__", "demo -n 0", f"-n: found 0, {FEATURES}"),
    ("benchmarks.normcheck", "--jobs 0", "--jobs: found 0, expected at least 1"),
    ("benchmarks.gpu.command", "--minutes nan", "--minutes: found nan, expected more than 0"),
]
if hasattr(os, "sched_getaffinity"):  # on Linux, where processes are pinned to cores
    SLIPS += [
        ("benchmarks.cpu.command", "--threads 1 0", "--threads: found 1 0, expected 1 to .*cores"),
    ]


@pytest.mark.parametrize("module, arguments, says", SLIPS)
def test_a_slip_is_told_before_anything_is_run(module, arguments, says, tmp_path, capsys):
    (tmp_path / "file").touch()
    arguments = [str(tmp_path / "file" / "x.json") if a == "FILE" else a for a in arguments.split()]
    with pytest.raises(SystemExit) as end:
        importlib.import_module(module).main(arguments)
    assert end.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.search(f"error: (argument )?{says}", last), last
