"""The bibliography's style: sorted by author, labelled as the text cites, "Ba et al., 2016"."""

import re

from pybtex.plugin import register_plugin
from pybtex.richtext import Text
from pybtex.style.formatting.plain import Style as Plain
from pybtex.style.labels import BaseLabelStyle


def label(entry):
    """Whom and when, as in the text: one name, two names, or the first of more."""
    people = entry.persons.get("author") or entry.persons.get("editor") or []
    names = [
        str(Text(" ").join(person.rich_prelast_names + person.rich_last_names)) for person in people
    ]
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
    """The letter of one of several works of a year, "b" of "2024b"; of others nothing. ``citation``
    may be None.
    """
    return re.search(r"[a-h]?$", citation.formatted_entry.label)[0] if citation else ""


CITATION = re.compile(
    r'(<a [^>]*href="(?:bibliography\.html)?#(\w+)"[^>]*>(?:(?!</a>).)*\b\d{4})(?=</a>)'
)


ADDRESS = re.compile(r'(?<=">)https?://[^<]+(?=</a>)')


def divided(html):
    """The HTML with places where a line may end in an address that is its own text: behind a
    stroke.
    """
    return ADDRESS.sub(lambda address: re.sub(r"(?<=[^/]/)(?=[^/])", "<wbr>", address[0]), html)


def _cite_the_letter(app, pagename, templatename, context, doctree):
    """A citation of one of two works of a year says which: the text writes the year alone, the list
    "2024a".
    """
    cited = {citation.citation_id: citation for citation in app.env.get_domain("cite").citations}

    def with_letter(link):
        return link[1] + letter(cited.get(link[2]))

    if "body" in context:
        context["body"] = divided(CITATION.sub(with_letter, context["body"]))


def setup(app):
    app.connect("html-page-context", _cite_the_letter)
    register_plugin("pybtex.style.formatting", "as_cited", AsCited)
