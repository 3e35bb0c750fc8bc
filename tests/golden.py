"""Golden files: what the library says, word for word, beside the tests that compare it.

Such a file has blocks, each below a line "== name". After a change that is meant,

    LN_GOLDEN=write .venv/bin/python -m pytest tests/normcheck/validate

writes anew those of the tests that run. Then read the difference: each line must be true.
"""

import os
import re
from pathlib import Path

#: Numbers that are roundings, other ones on another machine: errors of rows, digits, both in JSON.
_ERROR = re.compile(r"(relative\s+error\s+there\s+is\s+)(\S+),(\s+)(\S+)(\s+times)")
_DIGITS = re.compile(r"(\b(?:y|h|d\w+|A|B)\s+)?(\d+\.\d)(?=(?(1)(?:[,;\n<]|$)|\s+digits))")
_JSON = re.compile(r'("(?:y|d\w+|share|error)": )([\d.e+-]+)')
REPORTS = Path(__file__).with_name("normcheck") / "validate/said"


def blocks(path):
    """{name: text} of a file."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    parts = re.split(r"^== (.*)\n", text, flags=re.M)[1:]
    return {name: body.rstrip("\n") for name, body in zip(parts[::2], parts[1::2])}


def without_roundings(text):
    """The text with # for each of these numbers."""

    def error(found):
        start, part, space, _, end = found.groups()
        return f"{start}#,{space}#{end}" if float(part) < 1e-4 else found[0]

    def digits(found):
        return found[0] if float(found[2]) <= 4 else f"{found[1] or ''}#"

    def of_record(found):
        number, share = float(found[2]), "share" in found[1]
        rounding = number < 1 if share else number < 1e-4 if "error" in found[1] else number > 4
        return found[1] + ("#" if rounding else f"{number:.2g}")

    return _JSON.sub(of_record, _DIGITS.sub(digits, _ERROR.sub(error, text)))


def compare(path, name, text):
    """Asserts that the block of this name holds this text, or writes it."""
    known, text = blocks(path), "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
    if os.environ.get("LN_GOLDEN") == "write":
        known[name] = text
        whole = "\n".join(f"== {one}\n{known[one]}\n" for one in known)
        path.write_text(whole, encoding="utf-8")
    assert text == known.get(name), f"{path.name}: {name}"


def compare_report(file, name, report, whole=False):
    """Compares a report of normcheck, if it is not ``whole`` up to the test that it shows."""
    text = str(report) if whole else str(report).partition("\nThis test shows")[0]
    compare(REPORTS / f"{file}.txt", name, without_roundings(text))
