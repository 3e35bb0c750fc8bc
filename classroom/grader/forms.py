"""The code cells of what was handed in, whatever its form. Runs inside the sandbox, on bytes that
nobody vouches for.

Read are: a notebook (of format 4, or 3 and older), Python in percent cells, as nbconvert writes it,
or plain, and a zip with one of these in it; as UTF-8 or UTF-16, with a byte order mark or without.
Outputs are not looked at.
"""

import ast
import codecs
import io
import json
import re

CODE_LIMIT, _ZIP_LIMIT = 10**7, 10**8  # bytes of all code; of a file in a zip
_CELL = re.compile(r"^# ?(?:%%.*|In ?\[.*\]:.*)$", re.MULTILINE)


def code_cells(data):
    """The sources of the code cells; ValueError where there is nothing to be read."""
    if data[:4] == b"PK\x03\x04":
        data = _in_zip(data)
    text = _text(data)
    sources = _of_notebook(text) if text.lstrip()[:1] in ("{", "[") else _of_python(text)
    if sum(map(len, sources)) > CODE_LIMIT:
        raise ValueError(f"more than {CODE_LIMIT} characters of code")
    return sources


def without_magics(source):
    """The source with Jupyter's own lines (%magic, !shell, help?) replaced by pass."""
    return re.sub(
        r"^([ \t]*)(?:%{1,2}[a-zA-Z].*|!.*|[\w.]+\?+[ \t]*)$", r"\1pass", source, flags=re.MULTILINE
    )


def _in_zip(data):
    # slow, and needed for few: each submission's process begins with an import of this module
    import zipfile

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            hidden = ".", "__MACOSX"
            names = [
                name
                for name in archive.namelist()
                if not any(part.startswith(hidden) for part in name.split("/"))
            ]
            for suffix in (".ipynb", ".py"):
                chosen = [name for name in names if name.lower().endswith(suffix)]
                if len(chosen) == 1:
                    with archive.open(chosen[0]) as file:
                        found = file.read(_ZIP_LIMIT + 1)
                    if len(found) > _ZIP_LIMIT:
                        raise ValueError(f"the file in the zip has more than {_ZIP_LIMIT} bytes")
                    return found
                if chosen:
                    raise ValueError(
                        f"a zip with {len(chosen)} files that end with {suffix}, expected 1"
                    )
    # Broken, or encrypted.
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(f"the zip cannot be read: {error}") from None
    raise ValueError("a zip without a notebook (.ipynb) or Python file (.py)")


def _text(data):
    """The text: by its byte order mark, else by a 0 byte UTF-16, else UTF-8 or Latin-1."""
    if data.startswith(codecs.BOM_UTF8):
        return _decoded(data, "utf-8-sig")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return _decoded(data, "utf-16")
    if len(data) > 3 and 0 in data[:2] != b"\0\0":
        return _decoded(data, "utf-16-be" if data[0] == 0 else "utf-16-le")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _decoded(data, name):
    try:
        return data.decode(name)
    except UnicodeDecodeError as error:
        where = f"{error.reason}, at byte {error.start}"
        raise ValueError(f"text that is cut short or broken: {where}") from None


def _of_notebook(text):
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a notebook that is cut short or broken: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("JSON, but no notebook")
    try:
        if "cells" in found:
            cells = found["cells"]
        else:  # format 3 and older
            cells = [cell for sheet in found["worksheets"] for cell in sheet["cells"]]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        return ["".join(cell["source" if "source" in cell else "input"]) for cell in code]
    except (TypeError, KeyError) as error:
        raise ValueError(f"JSON, but no notebook: {type(error).__name__} {error}") from None


def _of_python(text):
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    places = [match.start() for match in _CELL.finditer(text)]
    if places:
        parts = [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)])]
        text_cell = re.compile(r"# ?%%.*\[(markdown|md|raw)\]")
        return [part for part in parts if part.strip() and not text_cell.match(part)]
    try:
        tree = ast.parse(without_magics(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"neither a notebook nor Python: {why}") from None
    if not tree.body:
        raise ValueError("there is no code in it")
    return [text]
