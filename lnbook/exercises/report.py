"""What :func:`lnbook.exercises.check` found, in words."""

import html
import re
from typing import NamedTuple


class Report(NamedTuple):
    """What a check of an answer found; text where it is printed, HTML in a notebook.

    * ``passed``: descriptions of the checks passed.
    * ``failed``: (description, message) of the one that failed, or None.
    * ``total``: number of checks; those after the one that failed were not run.
    * ``diagnosis``: which mistake it is, a :class:`normcheck.mistakes.Diagnosis`, or None.
    * ``written``: False if the stub was returned as it is.
    """

    id: str
    passed: tuple
    failed: tuple | None
    total: int
    diagnosis: tuple | None = None
    written: bool = True

    @property
    def _skipped(self):
        return self.total - len(self.passed) - 1 if self.failed else 0

    def explain(self):
        """Where the diagnosis comes from, for authors and instructors: entry or fit, coefficients,
        what was refuted.
        """
        if not self.diagnosis:
            return "no diagnosis"
        names = f" ({', '.join(self.diagnosis.names)})" if self.diagnosis.names else ""
        because = (f"  {line}" for line in self.diagnosis.because)
        return "\n".join([f"{self.diagnosis.kind}{names}", *because])

    def __repr__(self):
        if not self.written:
            return f"{self.id}: {self.failed[1]}"
        lines = [f"{self.id}: {len(self.passed)} of {self.total} checks passed"]
        lines += [f"  passed: {description}" for description in self.passed]
        if self.failed:
            lines.append(f"  FAILED: {self.failed[0]}\n    {self.failed[1]}")
            lines += [f"  (not run after that: {self._skipped})"] if self._skipped else []
        lines += [f"  DIAGNOSIS: {self.diagnosis}"] if self.diagnosis else []
        return "\n".join(lines)

    def html(self):
        """The report as HTML: a heading and lists, every state in words, so that a screen reader
        reads all of it. What stands between backticks is code.
        """

        def words(text):
            return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))

        def items(head, *texts):
            lines = "".join(f"<li>{words(text)}</li>" for text in texts)
            return f"<p>{head}</p><ul>{lines}</ul>" if texts else ""

        head = f"{html.escape(self.id)}: {len(self.passed)} of {self.total} checks passed"
        parts = [f"<h4>{head}</h4>", items("Passed:", *self.passed)]
        if self.failed:
            parts.append(items("Failed:", ": ".join(self.failed)))
            parts += [f"<p>Not run after that: {self._skipped}.</p>"] if self._skipped else []
        if self.diagnosis:
            parts.append(f"<p><strong>Diagnosis.</strong> {words(str(self.diagnosis))}</p>")
        return f'<section aria-label="Report on {html.escape(self.id)}">{"".join(parts)}</section>'

    def _repr_html_(self):
        # None leaves an untouched stub to the text: a page of stubs needs no headings for them.
        return self.html() if self.written else None
