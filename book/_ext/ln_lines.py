"""Where a line may break: not within a short piece of code, not between it or a formula and its
punctuation, not before the number that a formula with "=" at its end is equal to. Where a sheet of
paper may end: within a long listing.

A formula is a box to the browser, which may put the comma after it on the next line. Docutils puts
each word of a piece of code into a ``<span>`` of its own: here the piece is one, and these
elements, a third of a page of the API, go.
"""

import re

LONG = 14  # lines; a shorter listing stays whole on paper
LISTING = re.compile(r'<div class="highlight">(?=<pre>((?:.*\n)*?)(?:.*)</pre>)')
SHORT = 24  # characters of code, which always fit on a line of a phone
WORD = re.compile(r'<span class="pre">(.*?)</span>', re.S)
CODE = re.compile(rf'<code class="([^"]*)">((?:[^<&]|&\w+;){{1,{SHORT}}})</code>([-.,;:!?)\]’”]*)')
LONG_CODE = re.compile(rf'(?<=">)(?:[^<&]|&\w+;){{{SHORT + 1},}}(?=</code>)')
FORMULA = re.compile(r'([(\[“]*)(<span class="math[^>]*>[^<]*</span>)([-.,;:!?)\]’”]*(?:th\b)?)')
EQUATION = re.compile(
    r'(<span class="math[^>]*>[^<]*=\\\)</span>) (<span class="pasted-text">[^<]*</span>[.,;:)]*)'
)
#: What a signature in the API is made of, beyond the names that have their own looks
SIGNATURE = re.compile(r'<span class="(?:n|o|p|w|default_value|sig-paren)">([^<]*)</span>')


def _keep(formula):
    before, box, after = formula.groups()
    return (
        f"{before}{box}{after}"
        if not before + after
        else f'<span class="ln-keep">{before}{box}{after}</span>'
    )


def _keep_code(code):
    kept = f'<code class="{code[1]} ln-keep">{code[2]}</code>{code[3]}'
    return f'<span class="ln-keep">{kept}</span>' if code[3] else kept


def _divide(code):
    """Longer code breaks behind a dot, a bracket or a stroke, rather than anywhere."""
    return re.sub(r"(?<=\w)([./](?=\w)|\((?=[^)]))", r"\1<wbr>", code[0])


def kept_together(html):
    """The HTML with fewer places where a line may break, and fewer elements."""
    html = LONG_CODE.sub(_divide, CODE.sub(_keep_code, WORD.sub(r"\1", html)))
    return FORMULA.sub(_keep, EQUATION.sub(r'<span class="ln-keep">\1 \2</span>', html))


def long_listings(html):
    """The HTML with the class ``ln-long`` where a listing has many lines."""
    return LISTING.sub(
        lambda m: (
            m[0].replace("highlight", "highlight ln-long") if m[1].count("\n") > LONG else m[0]
        ),
        html,
    )


def plain_signatures(html):
    """Signatures without the elements that look like nothing; a comma belongs to the parameter
    before it.

    A line may end after a module's name and after the bracket. A value of many characters, a
    table's, is left out.
    """

    def plain(sig):
        sig = re.sub(r"</em>([,)])", r"\1</em>", SIGNATURE.sub(r"\1", sig[0]))
        sig = re.sub(r'<em class="property">[^<]{100,}</em>', "", sig)
        return re.sub(r'(\.</span>|\((?=<em class="sig-param"))', r"\1<wbr>", sig)

    return re.sub(r"<dt class=\"sig .*?</dt>", plain, html, flags=re.S)


def _lines(app, pagename, templatename, context, doctree):
    for part in ("body", "toc"):
        if part in context:
            context[part] = long_listings(plain_signatures(kept_together(context[part])))


def setup(app):
    app.connect("html-page-context", _lines, priority=920)
