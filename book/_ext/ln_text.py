"""How the text is set: where a line may break, numbers as one writes them, and citations.

A line does not break within a short piece of code, between it or a formula and its punctuation, or
before the number that a formula with "=" at its end is equal to; a sheet of paper may end within a
long listing. A formula is a box to the browser, which may put the comma after it on the next line.
Docutils puts each word of a piece of code into a ``<span>`` of its own: here the piece is one.

Numbers that a cell computed stand in the text as the text writes its own: 4e-09 as four times a
power of ten, a minus as a minus sign. The bibliography is sorted by author and labelled as the text
cites, "Ba et al., 2016".
"""

import re

from pybtex.plugin import register_plugin
from pybtex.richtext import Text
from pybtex.style.formatting.plain import Style as Plain
from pybtex.style.labels import BaseLabelStyle


def label(entry):
    """Whom and when, as in the text: one name, two names, or the first of more."""
    people = entry.persons.get("author") or entry.persons.get("editor") or []
    names = [str(Text(" ").join(p.rich_prelast_names + p.rich_last_names)) for p in people]
    who = " and ".join(names) if len(names) < 3 else f"{names[0]} et al."
    return f"{who}, {entry.fields.get('year', '')}"


class Labels(BaseLabelStyle):
    def format_labels(self, sorted_entries):
        found = [label(entry) for entry in sorted_entries]
        for place, text in enumerate(found):
            same = found[:place].count(text)
            yield text + ("abcdefgh"[same] if found.count(text) > 1 else "")


class AsCited(Plain):
    default_label_style = Labels


def letter(citation):
    """The letter of one of several works of a year, "b" of "2024b"; else nothing."""
    return re.search(r"[a-h]?$", citation.formatted_entry.label)[0] if citation else ""


CITATION = re.compile(
    r'(<a [^>]*href="(?:bibliography\.html)?#(\w+)"[^>]*>(?:(?!</a>).)*\b\d{4})(?=</a>)'
)
ADDRESS = re.compile(r'(?<=">)https?://[^<]+(?=</a>)')


def divided(html):
    """The HTML in which an address that is its own text may be divided behind a stroke."""
    return ADDRESS.sub(lambda address: re.sub(r"(?<=[^/]/)(?=[^/])", "<wbr>", address[0]), html)


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
    before, _, after = formula.groups()
    return f'<span class="ln-keep">{formula[0]}</span>' if before + after else formula[0]


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

    def marked(m):
        long = m[1].count("\n") > LONG
        return m[0].replace("highlight", "highlight ln-long") if long else m[0]

    return LISTING.sub(marked, html)


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


#: What ``glue`` handed over, and the verdicts that cells of a page write
PASTED = re.compile(
    r'<span class="pasted-text">[^<]*</span>|<p><strong>Verdict: [^<]*</strong>[^<]*</p>'
)
POWER = re.compile(r"(\d+(?:\.\d+)?)e([-+\u2011]?)0*(\d+)\b")
MINUS = re.compile(r"(?<![\w.])[-\u2011](?=\d)")


def written(text):
    """The text, of a page or a notebook, with its numbers so written."""

    def number(found):
        factor = "" if found[1] == "1" else f"{found[1]}\u00a0\u00d7\u00a0"
        sign = "" if found[2] in "+" else "\u2212"
        return f"{factor}10<sup>{sign}{found[3]}</sup>"

    return MINUS.sub("\u2212", POWER.sub(number, text))


def _set(app, pagename, templatename, context, doctree):
    """Set a page: of two works of a year, "2024a", the letter; where lines break; numbers."""
    cited = {citation.citation_id: citation for citation in app.env.get_domain("cite").citations}

    def with_letter(link):
        return link[1] + letter(cited.get(link[2]))

    if "body" in context:
        context["body"] = divided(CITATION.sub(with_letter, context["body"]))
    for part in ("body", "toc"):
        if part in context:
            context[part] = long_listings(plain_signatures(kept_together(context[part])))
    if "body" in context:
        context["body"] = PASTED.sub(lambda pasted: written(pasted[0]), context["body"])


def setup(app):
    register_plugin("pybtex.style.formatting", "as_cited", AsCited)
    app.connect("html-page-context", _set, priority=920)
