"""The files of ``benchmarks/results`` that pages draw from."""

import json
from pathlib import Path

#: What is measured. A file belongs to the longest of these that its name begins with, so gpu-code.json not to "gpu".
KINDS = ("accuracy", "cpu", "machine", "gpu", "gpu-code")

_REQUIRED = object()


def _is_of(name, kind):
    """Whether a file called ``name``, without its ending, may hold results of this kind."""
    return name == kind or name.startswith(f"{kind}-")


def read(kind, missing=_REQUIRED):
    """The newest results of one kind: those with the latest ``provenance["date"]``.

    Parameters
    ----------
    kind : str
        One of :data:`KINDS`: the file is ``benchmarks/results/<kind>.json`` or
        ``benchmarks/results/<kind>-<machine>.json``, seen from the root of the repository or a folder in it.
    missing : object, optional
        Returned if there is no such file.

    Returns
    -------
    dict
        The file's content.

    Raises
    ------
    FileNotFoundError
        If there is no such file and ``missing`` is not given.
    """
    folders = Path("benchmarks/results"), Path("../benchmarks/results")
    longer = [other for other in KINDS if other.startswith(f"{kind}-")]
    paths = [path for folder in folders for path in sorted(folder.glob("*.json"))
             if _is_of(path.stem, kind) and not any(_is_of(path.stem, other) for other in longer)]
    if paths:
        found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        return max(found, key=lambda results: results["provenance"]["date"])  # year first: text sorts as time does
    if missing is _REQUIRED:
        raise FileNotFoundError(f"kind: found no {kind}.json or {kind}-*.json in benchmarks/results of {Path.cwd()} "
                                f"or of the folder above, expected what benchmarks.{kind.replace('-', '_')} writes")
    return missing
