"""Which submissions are alike: the lines that two of them share, once names of variables and layout
do not count.

Lines of the notebook that was handed out do not count, nor do lines that many have: right answers
are alike. What the report shows is a reason to ask, and no proof.
"""

import contextlib
import difflib
import html
import io
import itertools
import json
import keyword
import tokenize
from collections import Counter
from pathlib import Path

from .grader.feedback import page
from .grader.grade import handed_in
from .grader.roster import join
from .grader.submissions import open_folder, read

# Of the submissions, but of three at least and _MOST at most: what more wrote is no sign.
_MANY, _MOST = 0.2, 20
_LEAST = 5  # lines
_SKIPPED = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def _as_written(source):
    """(without blanks, as written) lines of what need not be code."""
    return [("".join(line.split()), line) for line in source.splitlines() if line.strip()]


def lines(source):
    """(normalised, as written) lines of a cell: names that are not called or attributes become one
    letter, strings and comments go. Of a cell that is no Python, as written.
    """
    found, written = {}, source.splitlines()
    try:
        read = io.StringIO(source).readline
        tokens = [t for t in tokenize.generate_tokens(read) if t.type not in _SKIPPED]
    except (tokenize.TokenError, SyntaxError):
        return _as_written(source)
    for before, token, after in zip([None, *tokens], tokens, [*tokens[1:], None]):
        kept = token.string
        if token.type == tokenize.STRING:
            continue
        if token.type == tokenize.NAME and not keyword.iskeyword(kept):
            called = after is not None and after.string in ("(", ".")
            kept = kept if called or (before is not None and before.string == ".") else "v"
        found.setdefault(token.start[0], []).append(kept)
    return [(" ".join(parts), written[number - 1]) for number, parts in sorted(found.items())]


def cells_of(data):
    """The code cells of a notebook's bytes, a Python file as one; none where it is neither."""
    try:
        cells = json.loads(data)["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, TypeError, KeyError, RecursionError):
        try:
            return [data.decode()]
        except UnicodeDecodeError:
            return []


def most(number):
    """How many of so many submissions may have a line that counts."""
    return int(max(3, min(_MANY * number, _MOST)))


def pairs(sources, handed_out, threshold):
    """(share, one, other, shared lines) of pairs that share at least this part of the shorter one,
    most first.

    sources : dict, name -> cells of code.  handed_out : cells that do not count.
    """
    # In both forms: a line that was handed out may stand in a cell that a student's mistake made no
    # Python.
    given = {normal for cell in handed_out for normal, _ in (*lines(cell), *_as_written(cell))}
    code = {
        name: [line for cell in cells for line in lines(cell) if line[0] not in given]
        for name, cells in sources.items()
    }
    having = Counter(itertools.chain(*({normal for normal, _ in found} for found in code.values())))
    common = {normal for normal, number in having.items() if number > most(len(code))}
    code = {name: [line for line in found if line[0] not in common] for name, found in code.items()}
    holders = {}
    for name, found in code.items():
        for normal in {normal for normal, _ in found}:
            holders.setdefault(normal, []).append(name)
    meetings = Counter(
        itertools.chain(*(itertools.combinations(names, 2) for names in holders.values()))
    )
    for (one, other), number in meetings.items():
        if number >= min(_LEAST, len(code[one]), len(code[other])):
            share, shared = _shared(code[one], code[other])
            if share >= threshold and len(shared) >= _LEAST:
                yield share, one, other, shared


def _shared(one, other):
    normal = ([line for line, _ in lines] for lines in (one, other))
    blocks = difflib.SequenceMatcher(None, *normal, False).get_matching_blocks()
    places = [(block.a + k, block.b + k) for block in blocks for k in range(block.size)]
    shared = [(one[a][1], other[b][1]) for a, b in places]
    return len(shared) / max(1, min(len(one), len(other))), shared


def run(submissions, handed_out, out, threshold=0.8):
    """The command ``similar``: a page with the pairs; exit code 0."""
    place = Path(handed_out)
    notebooks = sorted(place.glob("*.ipynb")) if place.is_dir() else [place]
    if not notebooks or notebooks[0].suffix.lower() != ".ipynb":  # else all would look copied
        raise ValueError(
            f"handed-out: found no notebook in {handed_out}, expected the one that students got, or"
            " a folder of them"
        )
    sources = {}
    with open_folder(submissions) as folder:
        for submission in handed_in(submissions, folder, 2):
            with contextlib.suppress(ValueError):  # of what cannot be read
                sources[submission.student] = cells_of(read(folder, submission))
    if len(sources) < 2:
        raise ValueError(
            f"submissions: found {len(sources)} in {submissions} that can be read, expected 2 or"
            " more"
        )
    whose = join(list(sources)).student
    given = [cell for path in notebooks for cell in cells_of(Path(path).read_bytes())]
    found = [
        pair
        for pair in pairs(sources, given, threshold)
        if whose.get(pair[1]) != whose.get(pair[2], 0)
    ]
    about = (
        f"{len(found)} pairs of {len(sources)} submissions share at least {threshold:.0%} of the"
        " shorter one's lines, names of variables and what was handed out not counted, nor lines"
        f" that more than {most(len(sources))} have: where more copied from one another, they are"
        " not told. A reason to ask, no proof."
    )
    parts = ["<h1>Alike</h1>", f"<p>{about}</p>"]
    for share, one, other, shared in sorted(found, key=lambda pair: (-pair[0], pair[1:3])):
        text = "\n".join(
            a if a.strip() == b.strip() else f"{a}\n    | {b.strip()}" for a, b in shared
        )
        parts.append(
            f"<h2>{html.escape(one)} and {html.escape(other)}: {share:.0%}</h2>"
            f"<pre>{html.escape(text)}</pre>"
        )
    Path(out).write_text(page("Alike", parts), encoding="utf-8")
    print(f"pairs that are alike: {len(found)}, among {len(sources)} submissions: {out}")
    return 0
