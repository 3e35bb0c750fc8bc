"""The bibliography's style: sorted by author, labelled as the text cites, "Ba et al., 2016"."""

from pybtex.plugin import register_plugin
from pybtex.richtext import Text
from pybtex.style.formatting.plain import Style as Plain
from pybtex.style.labels import BaseLabelStyle


def label(entry):
    """Whom and when, as in the text: one name, two names, or the first of more."""
    people = entry.persons.get("author") or entry.persons.get("editor") or []
    names = [str(Text(" ").join(person.rich_prelast_names + person.rich_last_names)) for person in people]
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


def setup(app):
    register_plugin("pybtex.style.formatting", "as_cited", AsCited)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
