"""One zip with all pages of feedback, in the folders that Moodle takes back: those of its own
download.

``<full name>_<number>_assignsubmission_file_``: by the number it finds the student (Moodle's
source, ``mod/assign/feedback/file/importziplib.php``); it reads such names with the last underscore
and without.
"""

import zipfile


def feedback_zip(path, marks, files):
    """Write the zip of ``files``, entry -> page: of the same pages the same bytes."""
    partial = path.with_name(f"{path.name}.part")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for mark in marks:
            folder, kind, _ = mark.entry.partition("_assignsubmission_file")
            name = f"{folder}{kind}_/feedback.html" if kind else f"{mark.entry}/feedback.html"
            archive.writestr(
                zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), files[mark.entry].read_bytes()
            )
    partial.replace(path)
