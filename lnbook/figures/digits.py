"""Numbers whose wrong digits are red and underlined: as HTML, and as text with the wrong digits in
brackets.
"""

import html

import numpy as np


def right_and_wrong(number, exact, decimals=5):
    """``number`` with so many decimals, as two strings: the digits that are right, and the rest.

    The digits up to the d-th decimal are right if the number is within half a unit of that place.
    """
    text = f"{number:.{decimals}f}"
    right = [d for d in range(decimals + 1) if abs(number - exact) <= 0.5 * 10.0**-d]
    if not right:
        return "", text
    end = len(text) - decimals + right[-1] if right[-1] else len(text) - decimals - 1
    return text[:end], text[end:]


class WrongDigits:
    """A table of rows of numbers; each digit beyond the accuracy of its number is marked.

    exact : the right numbers, shape (n,); the first row, unmarked.
    rows : title -> numbers as computed, shape (n,).
    """

    def __init__(self, exact, **rows):
        exact = np.ravel(exact)
        self.rows = {
            title: [right_and_wrong(*pair) for pair in zip(np.ravel(row).tolist(), exact)]
            for title, row in {"exact": exact, **rows}.items()
        }

    def __repr__(self):
        lines = []
        for title, row in self.rows.items():
            cells = (right + (wrong and f"[{wrong}]") for right, wrong in row)
            lines.append(f"{title:8}" + "".join(f"{cell:>14}" for cell in cells))
        return "\n".join(lines)

    def _repr_html_(self):
        def cell(right, wrong):
            # The site's style sheet knows the theme; a notebook has none.
            marked = f'<u style="color: var(--ln-wrong, #b00000)">{wrong}</u>' if wrong else ""
            return f'<td style="text-align: right; font-family: monospace">{right}{marked}</td>'

        body = ""
        for title, row in self.rows.items():
            cells = "".join(cell(*pair) for pair in row)
            body += f'<tr><th scope="row">{html.escape(title)}</th>{cells}</tr>'
        label = "Results; wrong digits are underlined"
        table = f'<table aria-label="{label}">{body}</table>'
        return f'<div class="ln-cells" tabindex="0">{table}</div>'
