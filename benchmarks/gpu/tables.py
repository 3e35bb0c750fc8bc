"""What the GPU benchmark prints when it is done."""

from lnbook.measure.stopwatch import cell

from .conditions import FIELDS

#: The ceiling of a pass, and the field with the part of it that is reached.
CEILING = {"forward": ("copy", "of_copy"), "backward": ("add", "of_add")}


def grid(title, head, lines):
    """Lines of text: the first column to the left, the others to the right, each as wide as it has
    to be.
    """
    widths = [max(len(line[k]) for line in (head, *lines)) for k in range(len(head))]
    text = [
        "  ".join(
            c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(line, widths))
        )
        for line in (head, *lines)
    ]
    return ["", title, *(line.rstrip() for line in text)]


def by(records, *fields):
    """Records in groups: {values of the fields: records}, in the order in which they come."""
    groups = {}
    for record in records:
        groups.setdefault(tuple(str(record.get(field)) for field in fields), []).append(record)
    return groups


def waits(section, dtype, which, records):
    """What a user waits for who calls again and again: for the GPU or for the host, whichever takes
    longer.
    """
    names = [
        n for n in dict.fromkeys(r["implementation"] for r in records) if n not in ("copy", "add")
    ]
    lines = []
    for shape in dict.fromkeys(tuple(r["shape"]) for r in records):
        line = {
            r["implementation"]: r
            for r in records
            if tuple(r["shape"]) == shape and "host_seconds" in r
        }
        cells = [
            (line[n]["seconds"][0], line[n]["host_seconds"]) if n in line else None for n in names
        ]
        lines.append(
            [
                "x".join(map(str, shape)),
                *(
                    "" if c is None else f"{max(c) * 1e6:.1f}{' host' * (c[1] > c[0])}"
                    for c in cells
                ),
            ]
        )
    return grid(
        f"{section}: {which}, {dtype}; microseconds that a user waits (host: for the host)",
        ["", *names],
        lines,
    )


def times(section, dtype, which, records):
    """Microseconds of everybody at every shape, with the part of the ceiling's speed that is
    reached.
    """
    ceiling, field = CEILING[which]
    names = list(dict.fromkeys(r["implementation"] for r in records))
    lines = []
    for shape in dict.fromkeys(tuple(r["shape"]) for r in records):
        line = {r["implementation"]: r for r in records if tuple(r["shape"]) == shape}
        cells = []
        for name in names:
            r = line.get(name, {})
            part = "" if name == ceiling or field not in r else f" ({cell(r[field])})"
            cells.append(cell(r.get("seconds"), 1e6) + part)
        lines.append(["x".join(map(str, shape)), *cells])
    title = f"{section}: {which}, {dtype}; microseconds (part of the speed of {ceiling})"
    return grid(title, ["", *names], lines)


def ceilings(records):
    names = list(dict.fromkeys(r["implementation"] for r in records))
    lines = [
        [f"{size} MiB", *(f"{r['gb_per_s']:.0f}" for r in found)]
        for (size,), found in by(records, "mebibytes").items()
    ]
    return grid("ceilings: GB/s, arrays of so many MiB", ["", *names], lines)


def correctness(records):
    """The worst error of everybody, as a multiple of what is tolerated, and what is wrong."""
    lines = []
    for (name, dtype), found in by(records, "implementation", "dtype").items():
        good = [max(r["errors"]) / r["limit"] for r in found if r["ok"]]
        wrong = ", ".join(
            f"{r['which']} {'x'.join(map(str, r['shape']))}" for r in found if not r["ok"]
        )
        lines.append(
            [name, dtype, str(len(found)), f"{max(good):.2g}" if good else "", wrong or "none"]
        )
    title = "correctness: worst error / limit, of those within it"
    return grid(title, ["", "dtype", "cases", "error", "WRONG"], lines)


def repeated(records):
    lines = [
        [r["implementation"], "x".join(map(str, r["shape"])), f"{r['same']} of {r['runs']}"]
        for r in records
    ]
    return grid(
        "backward, again and again: runs with the same bits as the first",
        ["", "shape", "same"],
        lines,
    )


def launch(records):
    lines = [
        [r["implementation"], r.get("which", ""), f"{r['host_seconds'] * 1e6:.1f}"] for r in records
    ]
    return grid("launch: microseconds of the host", ["", "pass", "us"], lines)


def clocks(conditions):
    """The clocks, temperatures and reasons of each stage, first and last."""
    lines = [
        [stage, f"{look['seconds']:.0f}", *(look["found"].get(field, "") for field in FIELDS)]
        for stage, seen in conditions.items()
        for look in seen[:1] + seen[1:][-1:]
    ]
    return (
        grid("clocks while it ran, at the first and the last look", ["", "seconds", *FIELDS], lines)
        if lines
        else []
    )


def report(result):
    """All of a result, as lines."""
    lines = [f"{result['provenance']['device']['name']}, {result['provenance']['date']}"]
    sections = {section: found for (section,), found in by(result["records"], "section").items()}
    for table in (ceilings, correctness, repeated, launch):
        if table.__name__ in sections:
            lines += table(sections[table.__name__])
    for name in ("compile", "graphs", "tune", "tricks", "ladder", "speed"):
        for (dtype, which), found in by(sections.get(name, []), "dtype", "which").items():
            lines += times(name, dtype, which, found)
            if any("host_seconds" in r for r in found):
                lines += waits(name, dtype, which, found)
    for r in sections.get("nothing", []):
        lines += [
            "",
            (
                f"two events with nothing in between: {cell(r['seconds'], 1e6)} microseconds, part"
                " of all times"
            ),
        ]
    lines += clocks(result.get("conditions", {}))
    late = sum(r.get("late", 0) > 0 for r in result["records"])
    spent = ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in result["stages"].items())
    lines += [
        "",
        "medians; ~ marks quartiles further apart than a fifth of the median",
        (
            f"{len(result['records'])} records, {late} of them with times in which the GPU waited"
            " for the host"
        ),
        f"seconds: {spent}",
    ]
    lines += [f"left out: {name}: {why}" for name, why in result["left_out"].items()]
    lines += [f"FAILED: {f['stage']}: {f['what']}: {f['error']}" for f in result["failures"]]
    return lines
