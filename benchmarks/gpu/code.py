"""What the compiler makes of the CUDA kernels: registers, shared memory, spills, instructions.

Numba makes PTX of a kernel, text for an imagined machine; ptxas makes the code of a real one
(sm_75: T4, sm_80: A100, sm_90: H100) and says how many registers a thread needs; cuobjdump prints
that code, and here its instructions are counted. Counts are of instructions in the text, not of
instructions run.

``python -m benchmarks.gpu.code`` needs the packages of requirements-gpu-code.txt, and no GPU.
"""

import argparse
import functools
import inspect
import itertools
import math
import os
import pathlib
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter
from typing import NamedTuple

from lnbook.measure import provenance
from lnlib.gpu import kernels, ladder, plans
from lnlib.gpu.devices import in_kernels
from simt.cuda_access import SUCCESSOR, bfloat16, cuda, float16, float32, float64

from ..command import across, new_file
from . import sweep

ARCHITECTURES = ("sm_75", "sm_80", "sm_90")

RESULT = provenance.FOLDER / "gpu-code" / "kernels.json"
PACKAGES = (
    *("numba", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-cuda-nvcc"),
    "numba-cuda-mlir",
    *("nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm"),
)

#: Bytes of shared memory of an SM, the part of a GPU that runs blocks: of a T4, which has the
#: least.
SHARED = 64 * 1024


class Kernel(NamedTuple):
    """A kernel, ``factory(*parameters)``; the types of its arguments; what is expected of its code.

    ``signature`` is text, such as ``"void(float32[::1], int32)"``: it can be written where there is
    no Numba. ``expectations`` are arguments of :func:`complaints`. ``options`` are those of
    ``cuda.jit``.
    """

    name: str
    factory: callable
    parameters: tuple
    signature: str
    expectations: dict
    options: dict = {}


class Code(NamedTuple):
    """A compiled kernel. ``operations`` counts instructions by :func:`family`."""

    arch: str
    ptx: str
    sass: str
    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int
    operations: Counter


def _name(dtype):
    return getattr(dtype, "__name__", str(dtype))  # NumPy's where there is no Numba


def _planned(name, D, real, storage, centred=True, added=False):
    """The kernel of a pass of layer norm (of RMS norm, if not ``centred``; with a residual, or its
    gradient, if ``added``) for many rows of D numbers; an odd D makes it load one at a time. It
    stores one of x's dtype; of its arrays, "x" have the dtype of storage.
    """
    width = 1 if D % 4 else 4 if storage is float32 or D % 8 else 8
    kept = plans.KEPT // (2 if real is float64 else 1)
    if name == "forward":
        plan, blocks = plans.plan_forward(100_000, D, width, kept), 1
        factory, loads, stores = kernels.forward, 2 + centred, 1  # x, gamma, beta
        arrays, scalars = "xxxxrxx", ["int32"] * 2 + [_name(real)] * 3
        stores += added
    else:
        plan = plans.plan_backward(100_000, D, width, kept, 132, centred and added)
        blocks = max(1, plans.RESIDENT // (plan.threads * plan.rows))
        factory = kernels.backward_twice if plan.twice else kernels.backward
        arrays, scalars, loads, stores = "xxrxxrx", ["int32"] * 3, 4, 1  # x, dy, gamma twice
    threads = plan.threads * plan.rows
    expectations = {"threads": threads, "blocks": blocks, "float64": real is float64}
    if plan.threads <= 32 and name == "forward":
        expectations["none"] = ("BAR",)
    if plan.width > 1 and plan.chunks and not plan.twice:
        wide = "E.64" if storage is not float32 and width == 4 else "E.128"
        expectations["at_least"] = {
            f"LDG.{wide}": (loads + added) * plan.chunks,
            f"STG.{wide}": stores * plan.chunks,
        }
    kinds = [in_kernels(_name(storage if kind == "x" else real)) for kind in arrays]
    flags = {"centred": centred, "added": added, "real": real, "storage": storage}
    constants = dict(zip(("threads", "V", "W", "R"), plan)) | flags
    norm = ("" if centred else " RMS") + " residual" * added
    return Kernel(
        f"{name} {D} {_name(storage)}{norm}" + " precise" * (real is float64),
        factory,
        tuple(constants[name] for name in inspect.signature(factory).parameters),
        f"void({', '.join([f'{kind}[::1]' for kind in kinds] + scalars)})",
        expectations,
        {"launch_bounds": (threads, 1)},
    )


def _taught(name, arrays, threads, parameters=None, numbers="int64, int64", **expectations):
    """A kernel of the ladder; with parameters it is made by a factory."""
    found = getattr(ladder, name.split()[0])
    signature = f"void({'float32[::1], ' * arrays}{numbers})"
    expectations = {"threads": threads, **expectations}
    factory = found if parameters else lambda: found
    return Kernel(f"ladder {name}", factory, parameters or (), signature, expectations)


_taught_forward = functools.partial(_taught, arrays=6, numbers="int64, int64, float32")
_WIDE = {"LDG.E.128": 12}
_ADDED = f"void({'float32[::1], ' * 2}int32, int32)"

_LENGTHS = {
    "forward": (64, 128, 256, 1027, 4096, 12288, 16383, 20000, 32768, 40000),
    "backward": (64, 128, 512, 1027, 4096, 8191, 8192, 16384, 20000),
}
_TYPES = (float32, float16), (float64, float32), (float64, bfloat16, False, True)

#: All kernels, as they are launched for usual shapes.
KERNELS = [
    *(
        _planned(name, D, float32, *kind)
        for name, some in _LENGTHS.items()
        for D in some
        for kind in itertools.product((float32, bfloat16), (True, False), (False, True))
    ),
    *(_planned(name, 4096, *types) for name in _LENGTHS for types in _TYPES),
    Kernel("add_partials", kernels.add_partials, (8, 32), _ADDED, {"threads": 256}),
    _taught_forward("thread_per_row", threads=128, none=("SHFL", "BAR")),
    _taught_forward("block_per_row", threads=256, parameters=(256,), none=("SHFL",)),
    _taught_forward("warp_per_row", threads=256, none=("BAR",)),
    _taught_forward(
        "row_in_registers", threads=256, parameters=(256, 4, 4), at_least=_WIDE | {"STG.E.128": 4}
    ),
    _taught_forward("row_in_registers narrow", threads=512, parameters=(512, 16, 1)),
    _taught("dx_per_warp", 6, 256, none=("BAR",)),
    _taught("column_sums", 6, 1024, (1024,)),
    _taught("fused_atomics", 8, 256, at_least={"RED": 2}),
    _taught("fused_partials", 8, 256, (256, 4, 4), at_least=_WIDE | {"STG.E.128": 12}),
    _taught("fused_partials narrow", 8, 256, (256, 16, 1)),
    _taught("fused_partials_long", 8, 256),
    _taught("second_stage", 4, 1024, (1024,)),
]

#: Chapter 14's kernel as the benchmark's sweep has it; for the newest architecture alone.
SWEPT = [
    _taught(f"fused_partials {threads} x {V}", 8, threads, (threads, V, 4))
    for threads, V in sweep.PAIRS
]


def tool(name):
    """The path of a program: from a wheel, from the CUDA toolkit, or from PATH; None where there is
    none.

    Wheels come first, because Numba takes NVVM from there too, and a ptxas older than NVVM cannot
    read its PTX.
    """
    wheels = sorted(pathlib.Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin"), reverse=True)
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    folders = [*map(str, wheels), f"{home}/bin", os.environ.get("PATH", "")]
    return shutil.which(name, path=os.pathsep.join(folders))


def missing():
    """What is missing here for compiling kernels, as a sentence; empty where nothing is."""
    absent = [name for name in ("ptxas", "cuobjdump", "nvdisasm") if not tool(name)]
    if absent:
        return f"{', '.join(absent)} not found (requirements-gpu-code.txt has wheels)"
    try:
        cuda.compile_ptx(lambda: None, "void()", cc=(7, 5))
    except Exception as error:  # no Numba, no NVVM, no NVRTC: each version fails in its own way
        said = str(error).strip().splitlines()[0]
        return f"Numba cannot make PTX: {type(error).__name__}: {said}"
    return ""


def _run(name, *arguments):
    # cuobjdump looks for nvdisasm on the PATH.
    path = f"{pathlib.Path(tool('nvdisasm')).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = os.environ | {"PATH": path}
    ran = subprocess.run([tool(name), *arguments], capture_output=True, text=True, env=environment)
    if ran.returncode:
        raise RuntimeError(f"{name}: {ran.stderr.strip()}")
    return ran


_WITH_WIDTH = {"LD", "ST", "LDG", "STG", "LDL", "STL", "LDS", "STS"}
_WIDTHS = {"E", "U8", "S8", "U16", "S16", "64", "128"}
_SAME = {"REDG": "RED"}
_FLOAT64 = re.compile(r"D(ADD|MUL|FMA|SETP|MNMX)|(RCP|RSQ)64H|\bF64\b")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.M)


def family(opcode):
    """``LDG.E.128.CONSTANT`` is an ``LDG.E.128``, ``FADD.FTZ`` an ``FADD``: what an instruction is,
    without hints.

    LDG and STG are loads and stores in global memory, LDS and STS in shared, LDL and STL in local
    (arrays that did not fit into registers), LD and ST anywhere: the compiler did not know where.
    32 bits where no width is said.
    """
    name, *modifiers = opcode.split(".")
    name = _SAME.get(name, name)  # sm_90 has its own word for a sum in global memory
    widths = [m for m in modifiers if m in _WIDTHS and name in _WITH_WIDTH]
    return ".".join([name, *widths])


def count(sass):
    """Instructions by family; "all" of them, and those that compute or convert "float64"."""
    # NOPs fill up the last lines.
    opcodes = [opcode for opcode in _INSTRUCTION.findall(sass) if opcode != "NOP"]
    found = Counter(map(family, opcodes))
    found["all"] = len(opcodes)
    found["float64"] = sum(bool(_FLOAT64.search(opcode)) for opcode in opcodes)
    return found


@functools.lru_cache(maxsize=1)
def _ptx(kernel, signature, capability, options):
    return cuda.compile_ptx(kernel, signature, cc=capability, **dict(options))[0]


def compile_kernel(kernel, signature, arch, **options):
    """The code of a plain Python function for one of :data:`ARCHITECTURES`, as :class:`Code`.

    The options are those of ``cuda.compile_ptx``. One call after the other with the same function
    and options is fast: making PTX is what takes time.
    """
    # Newer architectures take the PTX of older ones; what is asked for above sm_75 sm_80 has, too.
    capability = (7, 5) if arch == "sm_75" else (8, 0)
    return assemble(_ptx(kernel, signature, capability, tuple(options.items())), arch)


def assemble(ptx, arch):
    """What ptxas makes of PTX, as :class:`Code`."""
    with tempfile.TemporaryDirectory() as folder:
        text, binary = pathlib.Path(folder, "kernel.ptx"), pathlib.Path(folder, "kernel.cubin")
        text.write_text(ptx)
        said = _run("ptxas", "-v", f"-arch={arch}", str(text), "-o", str(binary)).stderr
        sass = _run("cuobjdump", "-sass", str(binary)).stdout

    def number(pattern):
        found = re.search(pattern, said)
        return int(found[1]) if found else 0

    patterns = (
        *(r"Used (\d+) registers", r"(\d+) bytes smem", r"(\d+) bytes stack frame"),
        *(r"(\d+) bytes spill stores", r"(\d+) bytes spill loads"),
    )
    return Code(arch, ptx, sass, *map(number, patterns), count(sass))


def fits(registers, threads, blocks=1):
    """Whether so many blocks have their registers on one SM at a time."""
    # Four quarters have 16384 each, a warp lives in one, and a thread gets its own in eights.
    warps = math.ceil(math.ceil(threads / 32) * blocks / 4)
    return math.ceil(registers / 8) * 8 * 32 * warps <= 16384


def complaints(code, *, threads, blocks=1, at_least=None, none=(), float64=False):
    """What is wrong with a kernel's code, as a list of sentences; empty if it is as expected.

    It is that of a block of so many ``threads``, so many ``blocks`` of which must have room on one
    SM at the same time. ``at_least`` is the least number of instructions of a family, such as
    ``{"LDG.E.128": 4}``; families in ``none`` must not occur. ``float64``: whether float64
    instructions may.
    """
    n, room = code.operations, "are more than an SM has"
    generic = {name: n[name] for name in n if name.partition(".")[0] in ("LD", "ST", "ATOM")}
    loose = sorted(set(re.findall(r"\b[a-z]+\.(?:approx\.ftz|approx|ftz)\b", code.ptx)))
    spills = f"{code.spill_stores} bytes stored, {code.spill_loads} loaded"
    crowd = f"{code.registers} registers x {threads} threads x {blocks} blocks {room}"
    shared = f"{code.shared} bytes of shared memory x {blocks} blocks {room}"
    wrong = {
        crowd: not fits(code.registers, threads, blocks),
        shared: code.shared * blocks > SHARED,
        f"spills: {spills}, expected none": code.spill_stores or code.spill_loads,
        f"{code.stack} bytes of local memory, expected all to be in registers": code.stack,
        f"{n['float64']} float64 instructions, expected none": n["float64"] and not float64,
        f"generic access to memory: {generic}, expected a known kind of memory": generic,
        f"{', '.join(loose)} in the PTX, expected correctly rounded arithmetic": loose,
    }
    for name, least in (at_least or {}).items():
        wrong[f"{n[name]} {name}, expected {least} at least"] = n[name] < least
    for name in none:
        wrong[f"{n[name]} {name}, expected none"] = n[name]
    return [what for what, found in wrong.items() if found]


_SHOWN = re.compile(
    r"(LD|ST)[GSL]?\b|SHFL|BAR|RED|ATOM|F(ADD|MUL|FMA)|MUFU|D(ADD|MUL|FMA)|F2F|CALL|float64"
)


def record(kernel, code):
    """One line of the file."""
    names = inspect.signature(kernel.factory).parameters
    values = [p if isinstance(p, int) else _name(p) for p in kernel.parameters]
    shown = {name: n for name, n in code.operations.items() if n and _SHOWN.match(name)}
    fields = "registers", "shared", "stack", "spill_stores", "spill_loads"
    return {
        "kernel": kernel.name,
        "parameters": dict(zip(names, values)),
        "arch": code.arch,
        "threads": kernel.expectations["threads"],
        **{name: getattr(code, name) for name in fields},
        "instructions": code.operations["all"],
        "operations": dict(sorted(shown.items())),
    }


def main(arguments=None):
    about = "The machine code of the CUDA kernels, without a GPU."
    parser = argparse.ArgumentParser(description=about)
    default = "default: benchmarks/results/gpu-code/kernels.json"
    parser.add_argument("--output", type=new_file, default=RESULT, help=default)
    output = parser.parse_args(arguments).output
    if why := missing():
        parser.error(why)
    records, wrong = [], []
    for kernel in (*KERNELS, *SWEPT):
        made = kernel.factory(*kernel.parameters)
        for arch in ARCHITECTURES if kernel in KERNELS else ARCHITECTURES[-1:]:
            code = compile_kernel(made, kernel.signature, arch, **kernel.options)
            records.append(record(kernel, code))
            found = complaints(code, **kernel.expectations)
            wrong += [f"{kernel.name}, {arch}: {what}" for what in found]
    title = "registers of a thread, and instructions, of the compiled kernels"
    said = "{registers} {instructions}".format_map
    print(*across(title, records, "kernel", said, "arch"), *wrong, sep="\n")
    ran = provenance.provenance("python -m benchmarks.gpu.code", PACKAGES)
    ptxas = re.search(r"release [\d.]+, V([\d.]+)", _run("ptxas", "--version").stdout)
    provenance.save(output, {"provenance": ran | {"ptxas": ptxas and ptxas[1]}, "records": records})
    return bool(wrong) and not SUCCESSOR  # of whose code is asked only that it can be made


if __name__ == "__main__":
    raise SystemExit(main())
