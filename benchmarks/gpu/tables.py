"""What the GPU benchmark prints when it is done."""

from lnbook.measure.stopwatch import cell

from ..command import grid

#: The ceiling of a pass, and the field with the part of it that is reached.
CEILING = {"forward": ("copy", "of_copy"), "backward": ("add", "of_add")}


def by(records, *fields):
    """Records in groups: {values of the fields: records}, in the order in which they come."""
    groups = {}
    for record in records:
        groups.setdefault(tuple(str(record.get(field)) for field in fields), []).append(record)
    return groups


def across(title, records, along, said):
    """A line for each value of the field ``along``, a column for each implementation."""
    names = list(dict.fromkeys(r["implementation"] for r in records))
    lines = []
    for (value,), found in by(records, along).items():
        line = {r["implementation"]: said(r) for r in found}
        lines.append([value, *(line.get(name, "") for name in names)])
    return grid(title, ["", *names], lines)


def times(section, dtype, which, records):
    """Microseconds of everybody at every shape, the part of the ceiling's speed that is reached,
    and the host's where it takes longer: who calls again and again waits for that.
    """
    ceiling, field = CEILING[which]

    def said(r):
        part = f" ({cell(r[field])})" if field in r and r["implementation"] != ceiling else ""
        host = r.get("host_seconds", 0) > r["seconds"][0]
        return cell(r["seconds"], 1e6) + part + (f" host {r['host_seconds'] * 1e6:.1f}" * host)

    title = f"{section}: {which}, {dtype}; microseconds (part of the speed of {ceiling})"
    return across(title, records, "shape", said)


def correctness(records):
    """The worst error of everybody, as a multiple of what is tolerated, and what is wrong."""
    lines = []
    for (name, dtype), found in by(records, "implementation", "dtype").items():
        good = [max(r["errors"]) / r["limit"] for r in found if r["ok"]]
        wrong = ", ".join(f"{r['which']} {r['shape']}" for r in found if not r["ok"]) or "none"
        lines.append([name, dtype, str(len(found)), f"{max(good):.2g}" if good else "", wrong])
    title = "correctness: worst error / limit, of those within it"
    return grid(title, ["", "dtype", "cases", "error", "WRONG"], lines)


def report(result):
    """All of a result, as lines."""
    lines = [f"{result['provenance']['device']['name']}, {result['provenance']['date']}"]
    sections = {section: found for (section,), found in by(result["records"], "section").items()}
    if found := sections.get("correctness"):
        lines += correctness(found)

    def show(section, title, along, said):
        return across(title, sections[section], along, said) if section in sections else []

    nothing = "two events with nothing in between: microseconds, part of all times"
    lines += show("nothing", nothing, "section", lambda r: cell(r["seconds"], 1e6))
    rates = "ceilings: GB/s, arrays of so many MiB"
    lines += show("ceilings", rates, "mebibytes", lambda r: f"{r['gb_per_s']:.0f}")
    same = "backward, again and again: runs with the same bits as the first"
    lines += show("repeated", same, "shape", lambda r: f"{r['same']} of {r['runs']}")
    host = "launch: microseconds of the host"
    lines += show("launch", host, "which", lambda r: f"{r['host_seconds'] * 1e6:.1f}")
    for section in "compile", "ladder", "rms", "rms-compile", "speed":
        for (dtype, which), found in by(sections.get(section, []), "dtype", "which").items():
            lines += times(section, dtype, which, found)
    late = sum(r.get("late", 0) > 0 for r in result["records"])
    spent = ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in result["stages"].items())
    return [
        *lines,
        "",
        "medians; ~ marks quartiles further apart than a fifth of the median",
        f"{len(result['records'])} records, in {late} the GPU waited for the host at times",
        f"seconds: {spent}",
        *(f"left out: {name}: {why}" for name, why in result["left_out"].items()),
        *(f"FAILED: {f['stage']}: {f['what']}: {f['error']}" for f in result["failures"]),
    ]
