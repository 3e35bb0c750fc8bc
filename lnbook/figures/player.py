"""A kernel that one can watch: what :mod:`~lnbook.figures.recording` keeps, as data and in words.

``book/_static/ln_player.js`` draws it. The book's own recordings are those of
:mod:`~lnbook.figures.watched`; :func:`watch` shows a reader's kernel.
"""

import html
import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from simt.allowed import BLOCK_OPERATIONS
from simt.log import SECTOR
from simt.machine import SOURCES
from simt.memory import DataRace

from .recording import Recording, listing, record
from .style import COLOURS

KINDS = ("load", "store", "atomic")
#: A longer recording is cut off: nobody watches so many steps.
MOST_STEPS = 500
LABEL = "Memory, threads and their registers after this step."
#: What a page of the book defines, in JupyterLab's colours.
JUPYTER = """.ln-watch { --pst-color-text-base: var(--jp-content-font-color1, #222);
--pst-color-background: var(--jp-layout-color0, #fff); --pst-color-text-muted: var(--jp-content-font-color2, #555);
--pst-color-border: var(--jp-border-color1, #bbb); --pst-color-surface: var(--jp-layout-color2, #eee);
--pst-color-primary: #0a7d91; --ln-wrong: #c33;
"""  # noqa: E501
JUPYTER += "".join(f"--ln-{name}: {colour}; " for name, colour in COLOURS.items()) + "}\n"
STATIC = Path(__file__).resolve().parents[2] / "book/_static"


def _start(array):
    """Bytes from the beginning of its allocation to that of an array."""
    whole = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    return array.ctypes.data - whole.ctypes.data


# Words


def _join(words):
    """One, two and three."""
    words = [*map(str, words)]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _range(numbers):
    """2; 2 and 3; 2 to 5; or 1 and 5 others."""
    numbers = sorted(numbers)
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return _join(numbers) if len(numbers) < 5 else f"{numbers[0]} and {len(numbers) - 1} others"


def _slice(name, indices):
    """x[3], x[0:8], x[0:32:4]; or 5 of x."""
    found = sorted(set(indices))
    steps = {b - a for a, b in zip(found, found[1:])}
    if len(found) < 3:
        return _join(f"{name}[{i}]" for i in found)
    if len(steps) > 1:
        return f"{len(found)} of {name}"
    step = steps.pop()
    return f"{name}[{found[0]}:{found[-1] + 1}{f':{step}' * (step > 1)}]"


def _short(value):
    """A number as the picture has room for it; None for what is not written."""
    if value is None or np.isnan(value):
        return None
    if np.isinf(value):
        return str(float(value))
    return int(value) if value == int(value) else float(f"{value:.3g}")


def _pack(values):
    """A list, or "first,step,count" where that says it all."""
    values = [*values]
    steps = {b - a for a, b in zip(values, values[1:])} if None not in values else ()
    if len(values) > 2 and len(steps) == 1 and all(isinstance(v, int) for v in values):
        return f"{values[0]},{steps.pop()},{len(values)}"
    return values


class Film:
    """What one can see of launches that work on the same arrays. Threads are numbered through all
    blocks of a launch; an address is an array and an index.
    """

    def __init__(self, lanes=32):
        self.lanes, self.threads, self.sources = lanes, 0, {}
        self.arrays, self.registers, self.steps, self.places, self.made = [], [], [], [], []
        # Numbers of arrays, by name and block and by id; where they begin in their allocation.
        self.numbers, self.given, self.starts = {}, {}, defaultdict(int)
        self.held: dict = {}  # what a thread's registers hold

    def launch(self, kernel: Callable, grid: int, block: int, *arguments) -> Recording:
        """Add what a launch does, until a mistake ends it."""
        code = getattr(kernel, "py_func", kernel).__code__
        self.numbers = {}
        for name, value in zip(code.co_varnames, arguments):
            if isinstance(value, np.ndarray):
                number = self.given.get(id(value))
                if number is None:
                    number = self.given[id(value)] = self.array(name, 1, value.itemsize)
                    self.arrays[number]["v"] = [*map(_short, value)]
                    self.starts[number] = _start(value)
                    if late := self.starts[number] % SECTOR:  # numbers before it in its sector
                        self.arrays[number]["o"] = late // value.itemsize
                self.numbers[name, 0] = number
        found = record(kernel, grid, block, *arguments, lanes=self.lanes)
        self.grid, self.block, self.held = grid, block, defaultdict(dict)
        self.threads, self.sources = max(self.threads, grid * block), self.sources | found.sources
        new = len(self.steps)
        for steps, queue in found.steps:
            if len(self.steps) < MOST_STEPS:
                self.step(steps, queue)
        if len(self.steps) == MOST_STEPS:
            self.steps[-1]["s"] += f" The recording ends here, after {MOST_STEPS} steps."
        if 0 < new < len(self.steps):
            first = self.steps[new]  # the registers of the launch before are gone
            first["n"], said = 1, first["s"]
            first["s"] = f"In the next kernel, {said[0].lower()}{said[1:]}"
        if found.error:
            self.stop(found.error)
        return found

    def array(self, name, space, itemsize):
        self.arrays.append({"n": name, "g": space, "z": itemsize, "v": []})
        return len(self.arrays) - 1

    def ids(self, step):
        return [block * self.block + thread for block, thread in step.moments]

    def address(self, access):
        """The number of its array, and its index in it."""
        shared = access.space == "shared"
        key = access.array, access.block if shared else 0
        if key not in self.numbers:
            self.numbers[key] = self.array(access.array, 0, min(access.size, 4))
        array = self.arrays[self.numbers[key]]
        index = (access.address - self.starts[self.numbers[key]]) // array["z"]
        array["v"] += [None] * (index + 1 - len(array["v"]))
        return self.numbers[key], index

    def step(self, steps, queue):
        """Keep what goes on at one time, if it can be seen."""
        moments = {i: m for step in steps for i, m in zip(self.ids(step), step.moments.values())}
        changes, new = defaultdict(dict), {}  # of registers, by name and thread; None: it is gone
        for i, m in moments.items():
            held = self.held[i]
            here = {name: v for name, v in m.after.items() if held.get(name) != v}
            new |= dict.fromkeys(here)
            gone = {name: None for name in held if name not in m.after}
            for name, value in (gone | here).items():
                changes[name][i] = _short(value)
        if not new and not any(m.accesses or m.waits for m in moments.values()):
            return
        self.held |= {i: dict(m.after) for i, m in moments.items()}
        self.registers += [name for name in changes if name not in self.registers]
        requests = self.requests(moments)
        partners = [(i, p) for i, m in moments.items() for p in self.partners(i, m)]
        index = self.registers.index
        kept = {
            "t": _pack(moments),
            "r": [[index(name), _pack(of), _pack(of.values())] for name, of in changes.items()],
            "a": [  # what is loaded one sees in a register
                [*key, *[*map(_pack, zip(*parts))][: 3 if key[1] else 2]] for key, parts in requests
            ],
            "x": [*map(_pack, zip(*partners))],
            "b": any(step.waits for step in steps) + all(step.passes for step in steps),
            "q": _pack(i for step in queue for i in self.ids(step)),
        }
        kept = {name: value for name, value in kept.items() if value}
        kept["s"] = self.sentence(moments, requests, [*new], kept, queue)
        self.steps.append(kept)
        self.places.append(sorted({m.place for m in moments.values()}))
        self.made.append([(a, m.place) for m in moments.values() for a in m.accesses])

    def requests(self, moments):
        """[((array, kind), [(thread, index, value)])], one for each that a warp makes of memory."""
        found: dict = defaultdict(list)
        for i, moment in moments.items():
            for a in moment.accesses:
                number, index = self.address(a)
                values = a.value if isinstance(a.value, list) else [a.value]
                key = number, KINDS.index(a.kind), a.site, a.repeat, i // self.lanes
                found[key] += [(i, index + k, _short(v)) for k, v in enumerate(values)]
        return [(key[:2], parts) for key, parts in found.items()]

    def partners(self, i, moment):
        """The threads that a thread gets a number from."""
        lane = i % self.block % self.lanes
        for operation, _, _, _, amount in (w for w in moment.waits if w[0] in SOURCES):
            source = SOURCES[operation](lane, amount % self.lanes)
            yield i - lane + source if 0 <= source < self.lanes else i

    # What a step is called

    def who(self, ids):
        """The name of threads, and whether it is a plural."""
        ids = sorted(ids)
        warps = sorted({(i // self.block, i % self.block // self.lanes) for i in ids})
        blocks = sorted({block for block, _ in warps})
        of = f" of block {blocks[0]}" if self.grid > 1 else ""
        whole = len(ids) == len(warps) * min(self.lanes, self.block)
        if whole and self.grid > 1 and self.block <= self.lanes:
            return f"block{'s' * (len(blocks) > 1)} {_range(blocks)}", len(blocks) > 1
        if len(blocks) > 1:
            return f"{len(ids)} threads of {len(blocks)} blocks", True
        if whole and self.block <= self.lanes:
            return "the warp", False
        numbers = [warp for _, warp in warps] if whole else [i % self.block for i in ids]
        several = len(numbers) > 1
        return f"{'warp' if whole else 'thread'}{'s' * several} {_range(numbers)}{of}", several

    def sentence(self, moments, requests, names, kept, queue):
        who, several = self.who(moments)
        s, said = "" if several else "s", []
        first = next(iter(moments.values()))
        for kind, verb in enumerate(("load", "store", "add")):
            places, sectors = defaultdict(list), 0
            for (number, _), parts in (r for r in requests if r[0][1] == kind):
                places[number] += [index for _, index, _ in parts]
                array = self.arrays[number]
                late, per = array.get("o", 0), SECTOR // array["z"]
                sectors += array["g"] and len({(i + late) // per for _, i, _ in parts})
            if places:
                what = _join(_slice(self.arrays[n]["n"], of) for n, of in places.items())
                values = {value for _, parts in requests for *_, value in parts}
                stored = f" {values.pop()} to" if kind == 1 and len(values) == 1 else ""
                to = " to" if kind == 2 else ""
                count = f" ({sectors} sector{'s' * (sectors > 1)})" if sectors else ""
                said.append(f"{verb}{s}{stored}{to} {what}{count}")
        for operation, *_, amount in (w for w in first.waits if w[0] in SOURCES):
            passed = f"pass{'' if several else 'es'} numbers on ({operation} by {amount})"
            swapped = f"swap{s} numbers between lanes {amount} apart"
            said.append(swapped if operation == "shfl_xor_sync" else passed)
        if first.calls:
            said.append(f"call{s} {first.calls}")
        if names:
            said += self.of_registers(names, first, s, said)
        if "b" in kept:
            alone = self.block <= self.lanes
            last = f"{'are' if several else 'is'} the last at the barrier, so all go on"
            passed = f"pass{'' if several else 'es'} the barrier" if alone else last
            said.append(passed if kept["b"] == 2 else f"wait{s} at the barrier")
        others = [w[0] for w in first.waits if w[0] not in SOURCES and w[0] not in BLOCK_OPERATIONS]
        said += [f"meet{s} at {name}" for name in others]
        text = f"{who[0].upper()}{who[1:]} {_join(said)}"
        if queue:
            waiting, many = self.who([i for step in queue for i in self.ids(step)])
            text += f", and {waiting} wait{'' if many else 's'} for the same addresses"
        return text + "."

    def of_registers(self, names, moment, s, said):
        """What becomes of registers: the end of what is said already, or more to say."""
        code = moment.code
        lines, begin, _ = self.sources[code.co_firstlineno, code.co_name]
        line = lines[moment.place[1] - begin]
        values = [a.value for a in moment.accesses if a.kind == "load"]
        if values == [moment.after[names[0]]] and len(names) == len(said) == 1:
            said[0] += f" into {names[0]}"
            return []
        verb = f"add{s} to" if re.match(rf"\s*{names[0]} \+=", line) else f"compute{s}"
        return [f"{f'set{s}' if moment.calls else verb} {_join(names)}"]

    # How it ends

    def stop(self, error):
        """Mark a race wherever its two lines meet; another mistake is a last step of its own."""
        if not isinstance(error, DataRace):
            self.steps.append({"t": [], "s": f"The interpreter stops: {error}."})
            self.places.append([error.line])
            return
        (name, _), lines, before = error.place, {error.line, error.other_line}, []
        for step, made in zip(self.steps, self.made):
            here = [u for u in made if u[0].array == name and lines & {u[0].line, None}]
            pairs = ((old, new) for k, new in enumerate(here) for old in before + here[:k])
            pairs = [(old, new) for old, new in pairs if self.unordered(old[0], new[0])]
            if pairs:  # of the pairs, one of two warps, since lanes look as if they went together
                (old, was), (new, _) = max(
                    pairs, key=lambda pair: len({a.thread // self.lanes for a, _ in pair})
                )
                array, index = self.address(new)
                step["c"] = [was, array, index]
                race = f" A race at {name}[{index}]: nothing orders this {new.kind} and the"
                step["s"] += f"{race} {old.kind} in line {{}}."
            before = [] if step.get("b") == 2 and None not in lines else before + here
        last = self.steps[-1]
        if "b" in last:
            last["b"] = 1
            last["s"] = "All have come to the barrier, and the interpreter reports the race."
        else:
            last["s"] += " The interpreter stops here."

    def unordered(self, old, new):
        """Whether two accesses of an array are a race where nothing lies between them."""
        shared = old.block == new.block or new.space == "global"
        others = (old.block, old.thread) != (new.block, new.thread)
        harmless = {old.kind, new.kind} in ({"load"}, {"atomic"})
        return shared and others and old.address == new.address and not harmless

    def data(self, name=""):
        """All of it, for the script."""
        lines, at = listing(self.sources)
        at |= {line: i for (_, line), i in at.items()}  # for that of a mistake
        for step, places in zip(self.steps, self.places):
            step["l"] = [at[place] for place in places if place in at]
            if "c" in step:
                step["c"][0] = at[step["c"][0]]
                step["s"] = step["s"].replace("{}", str(step["c"][0] + 1))
        found = {"name": name, "code": lines, "names": self.registers, "arrays": self.arrays}
        size = [self.threads, self.block, min(self.lanes, self.block)]
        return found | {"size": size, "steps": self.steps}


class Player:
    """Recordings to choose from, the first shown first. A notebook shows it; ``print`` gives it in
    words.

    films: data of :class:`Film`. start: the step of the still picture.
    """

    def __init__(self, films, start=0):
        first, *others = films
        for film in others:
            same = zip(film["steps"], first["steps"])
            film["same"] = next((k for k, (a, b) in enumerate(same) if a != b), 0)
            film["steps"] = film["steps"][film["same"] :]
            other = [a != b for a, b in zip(film["code"], first["code"])]
            if film["same"]:  # it is the first but for a line
                film["off"] = other.index(True)
                for key in ("code", "names", "arrays", "size"):
                    del film[key]
        self.films, self.start = films, start

    def json(self):
        return json.dumps({"films": self.films, "start": self.start}, separators=(",", ":"))

    def html(self):
        """The inside of the figure: what the script reads, and the listing without scripts."""
        data = self.json().replace("<", "\\u003c")
        here = self.films[0]["steps"][self.start]["l"]
        lines = (
            f'<li{" class=ln-here" * (i in here)} style="--in: {len(line) - len(line.lstrip())}">'
            f"{html.escape(line) or '&nbsp;'}</li>"
            for i, line in enumerate(self.films[0]["code"])
        )
        script = f'<script type="application/json">{data}</script>'
        return f'{script}<ol class="ln-code">{"".join(lines)}</ol>'

    def _repr_html_(self):
        """In a live cell the page has the scripts; elsewhere they lie beside the package, or the
        steps are told in words.
        """
        style = script = ""
        if STATIC.is_dir():
            css = (STATIC / "ln.css").read_text(encoding="utf-8")
            _, css, _ = re.split(r"/\* (?=Interactive figures|The preview of)", css)
            style = f"<style>{JUPYTER}/* {css}</style>"
            both = ((STATIC / f"ln_{n}.js").read_text("utf-8") for n in ("figure", "player"))
            script = f"<script>(() => {{ {''.join(both)} }})();</script>"
        words = f'<pre class="ln-static">{html.escape(repr(self))}</pre>'
        figure = f'<div data-ln-figure="player" data-ln-label="{LABEL}">{self.html()}{words}</div>'
        return f'{style}<figure class="ln-watch">{figure}</figure>{script}'

    def __repr__(self):
        lines = []
        for film in self.films:
            lines += [film["name"]] * bool(film["name"])
            for k, step in enumerate(film["steps"], film.get("same", 0) + 1):
                lines.append(f"{k:3}  {step['s']}")
        return "\n".join(lines)


def watch(kernel: Callable, grid: int, block: int, *arguments) -> Player:
    """Run ``kernel[grid, block](*arguments)`` in the interpreter, and show what it does.

    Arguments as those of :func:`simt.launch`. A mistake that the interpreter finds is shown, not
    raised.
    """
    film = Film()
    film.launch(kernel, grid, block, *arguments)
    return Player([film.data()])
