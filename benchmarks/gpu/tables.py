"""What the GPU benchmark prints when it is done."""

from lnbook.measure.stopwatch import cell

from ..command import across, by, grid


def times(section, dtype, which, records):
    """Microseconds, the part of the ceiling's speed that is reached, and the host's if longer."""
    ceiling, field = ("copy", "of_copy") if which == "forward" else ("add", "of_add")

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
    if found := sections.get("repeated"):
        same = "backward, again and again: runs with the same bits as the first"
        lines += across(same, found, "shape", lambda r: f"{r['same']} of {r['runs']}")
    if found := sections.get("sweep"):
        title = "sweep: chapter 14's kernel, microseconds, by the number of blocks that fit"
        lines += across(title, found, "kernel", lambda r: cell(r["seconds"], 1e6))
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
