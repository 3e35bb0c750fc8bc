"""Mistakes against tests as a table, which a page's ``ln_matrix.js`` lets one explore."""

import html

import numpy as np

_FOUND = '<td class="ln-found">\N{BLACK SQUARE}</td>'
_MISSED = "<td>\N{MIDDLE DOT}</td>"


class KillMatrix:
    """A square where the test of a column finds the mistake of a row.

    found: bool, shape (mistakes, tests). mistakes, tests: (name, what it is) of each. Rows go from
    the mistake found most often down, columns from the test that finds least to the right; both
    counts stand beside the names.
    """

    def __init__(self, found, mistakes, tests):
        found, mistakes, tests = np.asarray(found), [*mistakes], [*tests]
        columns = np.argsort(found.sum(axis=0), kind="stable")
        # Ties in a row's count are broken by its pattern, so that equal rows stand together.
        rows = np.lexsort([*found[:, columns].T, -found.sum(axis=1)])
        self.found = found[np.ix_(rows, columns)]
        self.mistakes = [mistakes[i] for i in rows]
        self.tests = [tests[j] for j in columns]

    def __repr__(self):
        return f"{self.found.sum()} of {self.found.size} squares are filled."

    def _repr_html_(self):
        def head(scope, named, count):
            name, what = (html.escape(text) for text in named)
            return f'<th scope="{scope}" data-what="{what}"><span>{name} ({count})</span></th>'

        columns = zip(self.tests, self.found.sum(axis=0))
        heads = "".join(head("col", test, count) for test, count in columns)
        rows = "".join(
            f"<tr>{head('row', mistake, row.sum())}"
            + "".join(_FOUND if found else _MISSED for found in row)
            for mistake, row in zip(self.mistakes, self.found)
        )
        return (
            f'<div class="ln-matrix"><table><thead><tr><td></td>{heads}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>"
        )
