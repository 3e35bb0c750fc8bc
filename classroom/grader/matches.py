"""Functions that a student renamed: which one may be meant, proposed here and counted once the
instructor agrees.

The file of matches is CSV with the columns of ``_COLUMNS``. The grader writes what it proposes;
whoever marks puts "yes" in the last column and grades again.
"""

import difflib

from .text import cell, csv_text, read_csv

_COLUMNS = "student", "asked for", "found", "agreed"
_YES, _NO = ("yes", "y", "1", "true"), ("", "no", "n", "0", "false")
_ALIKE = 0.6  # of difflib's ratio, its own default for a close match


def proposed(missing, functions):
    """Which of a student's functions may be meant: dict name -> name.

    missing, functions : dict, name -> names of the parameters.  A function is taken for one name at most: for the one
    whose parameters it has, else for the most alike.
    """  # noqa: E501
    found, left = {}, dict(functions)
    for name, parameters in missing.items():
        same = [other for other, names in left.items() if names == list(parameters)]
        fits = [other for other, names in left.items() if len(names) == len(parameters)]
        alike = difflib.get_close_matches(
            _plain(name), [_plain(other) for other in same or fits], 1, _ALIKE
        )
        chosen = next(
            (other for other in same or fits if _plain(other) in alike),
            same[0] if len(same) == 1 else None,
        )
        if chosen:
            found[name] = chosen
            del left[chosen]
    return found


def _plain(name):
    return name.lower().replace("_", "")


def read(path):
    """What the instructor agreed to: dict student, as in the table -> dict name -> name. Empty
    without a file.
    """
    agreed = {}
    if path.exists():
        columns, rows = read_csv(path, "matches")
        if set(_COLUMNS) - set(columns):
            raise ValueError(
                f"matches: {path}: found columns {', '.join(columns)}, expected"
                f" {', '.join(_COLUMNS)}"
            )
        for line, row in rows:
            word = row["agreed"].strip().lower()
            if word not in _YES + _NO:
                raise ValueError(
                    f"matches: {path}, line {line}: found {row['agreed']!r} under agreed, expected"
                    " yes, no or nothing"
                )
            if word in _YES:
                agreed.setdefault(row["student"], {})[row["asked for"]] = row["found"]
    return agreed


def table(graded, agreed):
    """The file's text: what is proposed for ``graded``, (student, result) pairs, and what was
    agreed to before.
    """
    rows = [_COLUMNS]
    for student, result in graded:
        yes = agreed.get(cell(student), {})
        rows += [
            [cell(student), asked, cell(found), "yes" if asked in yes else ""]
            for asked, found in {**result["proposed"], **yes}.items()
        ]
    return csv_text(rows)
