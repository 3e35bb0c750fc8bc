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
        return "\n".join(
            f"{title:8}"
            + "".join(f"{right + (wrong and f'[{wrong}]'):>14}" for right, wrong in row)
            for title, row in self.rows.items()
        )

    def _repr_html_(self):
        def cell(right, wrong):
            # The site's style sheet knows the theme; a notebook has none.
            marked = f'<u style="color: var(--ln-wrong, #b00000)">{wrong}</u>' if wrong else ""
            return f'<td style="text-align: right; font-family: monospace">{right}{marked}</td>'

        body = "".join(
            "<tr><th"
            f' scope="row">{html.escape(title)}</th>{"".join(cell(*pair) for pair in row)}</tr>'
            for title, row in self.rows.items()
        )
        return (
            '<div class="ln-cells" tabindex="0"><table aria-label="Results; wrong digits are'
            f' underlined">{body}</table></div>'
        )
