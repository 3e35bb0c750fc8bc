"""PTX, read: the one kernel of a text becomes a list of instructions."""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class PtxError(Exception):
    """A kernel did what it must not do, or something that this interpreter does not know."""


class Register(NamedTuple):
    name: str


class Special(NamedTuple):
    name: str  # such as %tid.x


class Constant(NamedTuple):
    bits: int


class Symbol(NamedTuple):
    name: str  # of a parameter, a shared array or a label


class Address(NamedTuple):
    base: object
    offset: int


class Parts(NamedTuple):
    of: tuple  # {a, b, c, d}


class Pair(NamedTuple):
    first: object  # first|second
    second: object


@dataclass(slots=True)
class Instruction:
    text: str
    line: int
    guard: Register | None  # the instruction is for threads where this predicate holds,
    negated: bool  # or where it does not
    opcode: tuple  # ("ld", "global", "v4", "f32")
    operands: list

    @property
    def type(self):
        return self.opcode[-1]

    def wrong(self, what):
        """The error that says so, with the line."""
        return PtxError(f"{what}; line {self.line}: {self.text}")


@dataclass
class Kernel:
    name: str
    parameters: dict  # name -> type
    most_threads: int | None
    shared: dict  # name -> first byte
    shared_bytes: int
    registers: dict = field(default_factory=dict)  # name -> type
    labels: dict = field(default_factory=dict)  # name -> number of the instruction that follows
    instructions: list = field(default_factory=list)


def size(kind):
    """Bytes of a number of this type."""
    return 1 if kind == "pred" else int(kind.lstrip("bfsu")) // 8


def dtype(kind):
    """NumPy's name for a type of PTX. Bits without a meaning (b32) are unsigned integers."""
    return np.dtype(
        bool if kind == "pred" else f"{ {'f': 'f', 's': 'i'}.get(kind[0], 'u') }{size(kind)}"
    )


# A name in { } is known there only, so a register is named with the number of its braces.
_TOKEN = re.compile(
    r"\s*(?:(?P<open>\{)|(?P<close>\})|(?P<label>\$?\w+):|(?P<statement>[^;{}]+(?:\{[^}]*\}[^;{}]*)*);)"
)


def read(text):
    """The :class:`Kernel` of a PTX text."""
    text = re.sub(r"//[^\n]*", "", text)
    entries = list(re.finditer(r"\.entry\s+(\S+?)\s*\(([^)]*)\)([^{]*)(?=\{)", text))
    if len(entries) != 1:
        raise PtxError(f"found {len(entries)} kernels in the text, expected one")
    entry = entries[0]
    parameters = {
        name: kind for kind, name in re.findall(r"\.param\s+\.(\w+)\s+([\w$]+)", entry[2])
    }
    most = re.search(r"\.maxntid\s+(\d+)", entry[3])
    kernel = Kernel(entry[1], parameters, int(most[1]) if most else None, *_shared(text))
    _read_body(kernel, text, entry.end())
    return kernel


def _shared(text):
    """Where each shared array begins, and how many bytes they have together."""
    places, end = {}, 0
    for align, kind, name, count in re.findall(
        r"\.shared\s+\.align\s+(\d+)\s+\.(\w+)\s+(\w+)\[(\d+)\]", text
    ):
        places[name] = -(-end // int(align)) * int(align)
        end = places[name] + size(kind) * int(count)
    return places, end


def _read_body(kernel, text, at):
    scopes, braces = [], 0
    while True:
        token = _TOKEN.match(text, at)
        if token is None:
            raise PtxError(f"cannot read: {text[at : at + 80].strip()}")
        at = token.end()
        if token["open"]:
            scopes.append({})
            braces += 1
        elif token["close"]:
            scopes.pop()
            if not scopes:
                return
        elif token["label"]:
            kernel.labels[token["label"]] = len(kernel.instructions)
        elif (statement := " ".join(token["statement"].split())).startswith(".reg "):
            for name, kind in _declared(statement):
                scopes[-1][name] = f"{name}@{braces}" if len(scopes) > 1 else name
                kernel.registers[scopes[-1][name]] = kind
        elif statement.startswith("."):
            if not statement.startswith((".pragma", ".shared")):
                raise PtxError(f"unknown directive: {statement}")
        else:
            line = text.count("\n", 0, at) + 1
            kernel.instructions.append(_instruction(statement, line, scopes))


def _declared(statement):
    """(name, type) of each register that ``.reg .f32 %f<3>, %a`` declares."""
    _, kind, names = statement.split(None, 2)
    for name, count in re.findall(r"([%\w]+)(?:<(\d+)>)?", names):
        yield from (
            ((f"{name}{i}", kind[1:]) for i in range(int(count))) if count else ((name, kind[1:]),)
        )


def _instruction(statement, line, scopes):
    guard = re.match(r"@(!?)(%\w+) (.*)", statement)
    opcode, _, rest = (guard[3] if guard else statement).partition(" ")
    return Instruction(
        statement,
        line,
        _operand(guard[2], scopes) if guard else None,
        bool(guard and guard[1]),
        tuple(opcode.split(".")),
        [_operand(part, scopes) for part in _separated(rest)],
    )


def _separated(text):
    """Split at the commas outside of braces and brackets."""
    return [
        part.strip()
        for part in re.findall(r"(?:[^,{\[]|\{[^}]*\}|\[[^\]]*\])+", text)
        if part.strip()
    ]


def _operand(text, scopes):
    if text.startswith("{"):
        return Parts(tuple(_operand(part, scopes) for part in _separated(text[1:-1])))
    if text.startswith("["):
        base, _, offset = text[1:-1].partition("+")
        return Address(_operand(base.strip(), scopes), int(offset or 0))
    if "|" in text:
        return Pair(*(_operand(part.strip(), scopes) for part in text.split("|")))
    if text.startswith("%"):
        return next(
            (Register(scope[text]) for scope in reversed(scopes) if text in scope), Special(text)
        )
    if re.match(r"0[fFdD][0-9a-fA-F]{8}", text):
        return Constant(int(text[2:], 16))
    if re.match(r"-?\d", text):
        return Constant(int(text.rstrip("U"), 0))
    return Symbol(text)
