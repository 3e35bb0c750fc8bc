"""Who is in the class, by a CSV file of Moodle, of Canvas or of your own; and whose submission is
whose.

Moodle names what it hands out in bulk ``<full name>_<number>_assignsubmission_file``, with
``Participant <number>`` in its grading worksheet; Canvas ``<lastfirst>_[LATE_]<user's
ID>_<number>_<file>``. Everything else is taken for an id, a name or an address. Names are compared
without case, blanks, invisible format characters (Unicode's Cf) and the two ways in which Unicode
writes an accent.
"""

import re
import unicodedata
from typing import NamedTuple

from .feedback import file_name
from .submissions import suffix
from .text import read_csv

#: Columns that tell who somebody is, the first that is there is the id; as Moodle, Canvas and
#: people name them.
_IDS = (
    *("student id", "id number", "sis user id", "sis login id", "username", "identifier", "id"),
    *("email address", "email", "e-mail address", "e-mail"),
)
_NAMES = ("full name", "name", "student")
_FIRST, _LAST = ("first name", "firstname"), ("last name", "surname", "lastname")
_MOODLE = re.compile(r"(?P<name>.+?)_(?P<number>\d+)_assignsubmission_(?P<kind>[a-z]+)(_|$)")
_CANVAS = re.compile(r"(?P<name>[^_]+)_(?P<late>LATE_)?(?P<number>\d+)_(?P<upload>\d+)_")
_ESCAPED = re.compile(r"\\(\\|[tnr]|x[0-9a-f]{2}|u[0-9a-f]{4}|U00(?:0[0-9a-f]|10)[0-9a-f]{4})")


class Student(NamedTuple):
    """id : unique.  name : to be read.  row : of the file.  keys : what they may be called."""

    id: str
    name: str
    row: dict
    keys: frozenset


class Roster(NamedTuple):
    """columns : of the file.  students : in its order."""

    columns: tuple
    students: tuple


class Entry(NamedTuple):
    """A submission's name, taken apart. keys : that may be in a roster, the surest first.  says :
    who it is.  system : "moodle", "canvas" or "".  ignored : why it is no submission, or None.
    late : whether Canvas marked it.  upload : Canvas' number of the file, or None.
    """

    keys: tuple
    says: str
    system: str = ""
    ignored: str | None = None
    late: bool = False
    upload: str | None = None


class Joined(NamedTuple):
    """student : entry -> id.  ignored : entry -> why.  unknown : entries of nobody in the roster.
    missing : ids without an entry.  late : entries that Canvas marked.
    """

    student: dict
    ignored: dict
    unknown: list
    missing: list
    late: set


def plain(text):
    """Without case, blanks and invisible characters (Unicode's Cf); accents in one piece."""
    kept = (c for c in text.casefold() if not c.isspace() and unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFC", "".join(kept))


def _as_typed(name):
    """The name of a file before what does not print was escaped: as in a roster."""

    def character(match):
        code = match[1]
        return {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}.get(code) or chr(int(code[1:], 16))

    return _ESCAPED.sub(character, name)


def _letters(text):
    """Letters and digits alone."""
    return "".join(c for c in plain(text) if c.isalnum())


def read(path):
    """The :class:`Roster` of a CSV file; ValueError if it is none, or has an id twice."""
    columns, rows = read_csv(path, "roster", ",;\t")
    by_name = {column.strip().casefold(): column for column in columns}
    ids = [by_name[name] for name in _IDS if name in by_name]
    ids = ids or [by_name[name] for name in _NAMES if name in by_name]
    if not ids:
        raise ValueError(
            f"roster: {path} has the columns {', '.join(columns) or '(none)'}; expected one of "
            f"{', '.join([*_IDS, *_NAMES])}"
        )
    students, seen = [], {}
    for number, row in rows:
        row = {column: row[column].strip() for column in columns}
        id = next((row[column] for column in ids if row[column]), "")
        if not id or row.get(by_name.get("student", ""), "").casefold() == "points possible":
            continue  # no student, such as Canvas' second row
        id = unicodedata.normalize("NFC", id)
        if plain(id) in seen:
            raise ValueError(
                f"roster: {path}, line {number}: {id} stands in line {seen[plain(id)]} as well"
            )
        seen[plain(id)] = number
        students.append(_student(id, row, by_name, ids))
    if not students:
        raise ValueError(f"roster: {path} has no students")
    return Roster(columns, tuple(students))


def _student(id, row, by_name, ids):
    def first(names):
        return next(
            (row[by_name[name]] for name in names if name in by_name and row[by_name[name]]), ""
        )

    full, given, family = first(_NAMES), first(_FIRST), first(_LAST)
    if "," in full:  # Canvas: Last, First
        family, given = (part.strip() for part in full.split(",", 1))
        full = f"{given} {family}"
    full = unicodedata.normalize("NFC", full or f"{given} {family}".strip() or id)
    keys = {plain(row[column]) for column in ids} | {plain(full), _letters(family + given)}
    keys.add(plain(file_name(id)))  # the notebook of --per-student, under the name it came with
    return Student(id, full, row, frozenset(keys - {""}))


def entry(name):
    """The :class:`Entry` that a file or folder of this name is."""
    moodle, canvas = _MOODLE.match(name), _CANVAS.match(name)
    found = moodle or canvas
    says = unicodedata.normalize("NFC", f"{found['name']}_{found['number']}" if found else name)
    if moodle:
        ignored = None if moodle["kind"] == "file" else f"Moodle's folder of {moodle['kind']}"
        keys = f"participant{moodle['number']}", plain(_as_typed(moodle["name"]))
        return Entry(keys, says, "moodle", ignored)
    whole = _as_typed(name)
    stem = whole.removesuffix(suffix(whole))
    if canvas:  # or an id that looks like it
        keys = plain(whole), plain(stem), canvas["number"], plain(_as_typed(canvas["name"]))
        return Entry(keys, says, "canvas", late=bool(canvas["late"]), upload=canvas["upload"])
    return Entry((plain(whole), plain(stem), _letters(stem)), says)


def join(names, roster=None):
    """Whose the entries of these names are, a :class:`Joined`.

    Without a roster everybody is who the name says. With one, a key that two students share is
    nobody's. Canvas gives each file a number of its own, so hw_1_2_ann and hw_1_2_ben only look
    like its names, and are two students.
    """
    owners = {}
    for student in roster.students if roster else ():
        for key in student.keys:
            owners.setdefault(key, set()).add(student.id)
    joined, said = Joined({}, {}, [], [], set()), {}
    for name in names:
        found = entry(name)
        if found.ignored:
            joined.ignored[name] = found.ignored
            continue
        if found.late:
            joined.late.add(name)
        owner = next(
            (id for key in found.keys if len(owners.get(key, ())) == 1 for id in owners[key]), None
        )
        if roster and owner is None:
            joined.unknown.append(name)
        joined.student[name] = owner or found.says
        if owner is None and found.upload:
            said.setdefault((found.says, found.upload), []).append(name)
    for several in said.values():
        if len({name.removesuffix(suffix(name)) for name in several}) > 1:
            joined.student.update((name, unicodedata.normalize("NFC", name)) for name in several)
    joined.missing[:] = (
        [s.id for s in roster.students if s.id not in joined.student.values()] if roster else []
    )
    return joined


def whose(name, roster=None, joined=None):
    """The id of the student whom an id, a name, an address or an entry names; of nobody's it is
    what it says.

    joined : of the entries that are there, whose students and entries come first.
    """
    if joined and name in joined.student.values():
        return name
    if joined and name in joined.student:
        return joined.student[name]
    if roster and name in {student.id for student in roster.students}:
        return name
    return join([name], roster).student.get(name, name)
