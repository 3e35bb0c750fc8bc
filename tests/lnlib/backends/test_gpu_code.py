"""The machine code of the CUDA kernels, made without a GPU; and that this check can fail."""

import math
import os
import re

import pytest
from pages import CHAPTERS, read

from benchmarks.gpu import code as gpu_code
from benchmarks.gpu.code import ARCHITECTURES, KERNELS, compile_kernel, complaints
from lnlib.gpu import ladder
from normcheck.mistakes.change import executed
from simt import cuda_access
from simt.cuda_access import cuda, int32, libdevice, load4, store4


@pytest.fixture(scope="module")
def compiler():
    """The programs that compile; where they are promised, a skip would be a hole."""
    if why := gpu_code.missing():
        pytest.fail(why) if os.environ.get("LN_REQUIRE_CUDA_COMPILER") else pytest.skip(why)


# What is wrong with a kernel is found.

FLAT = "void(float32[::1], float32[::1], int32)"


def literal(x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = x[i] * 1.1


@pytest.mark.parametrize(
    "signature, expectations, said",
    [
        (FLAT, {}, "float64 instructions"),
        (FLAT, {"at_least": {"LDG.E.128": 1}}, "0 LDG.E.128, expected 1 at least"),
        ("void(float32[:], float32[:], int32)", {}, "generic access to memory"),
    ],
)
def test_a_bad_kernel_is_found(compiler, signature, expectations, said):
    found = complaints(compile_kernel(literal, signature, "sm_90"), threads=32, **expectations)
    assert any(said in what for what in found), found


# Four neighbours at once.


def copy4(x, y, n):
    i = int32(cuda.grid(1)) * int32(4)
    if i < n:
        a, b, c, d = load4(x, i)
        store4(y, i, a, b, c, d)


@pytest.mark.parametrize(
    "dtype, load, store, times",
    [
        ("float32", "LDG.E.128", "STG.E.128", 1),
        ("float16", "LDG.E.64", "STG.E.64", 1),
        ("uint16", "LDG.E.64", "STG.E.64", 1),
        ("float64", "LDG.E.128", "STG.E.128", 2),
    ],
)
@pytest.mark.parametrize("arch", [ARCHITECTURES[0], ARCHITECTURES[-1]])
def test_width_of_load4_and_store4(compiler, arch, dtype, load, store, times):
    operations = compile_kernel(copy4, f"void({dtype}[::1], {dtype}[::1], int32)", arch).operations
    memory = {name: n for name, n in operations.items() if re.match(r"(LD|ST)[GL]?(\.|$)", name)}
    assert memory == {load: times, store: times}


# The arithmetic that the kernels count on.


def recentred(x, y, n, m, r):
    y[n] = (x[n] - m) - r


def root(x, y, n, m, r):
    y[n] = m / math.sqrt(x[n])


FIVE = "void(float32[::1], float32[::1], int32, float32, float32)"


@pytest.mark.parametrize("arch", [ARCHITECTURES[0], ARCHITECTURES[-1]])
def test_nothing_is_reordered_and_only_products_are_fused(compiler, arch):
    names = "FADD", "FMUL", "FFMA", "DADD", "DMUL", "DFMA"

    def operations(kernel, signature=FIVE):
        found = compile_kernel(kernel, signature, arch).operations
        return {name: found[name] for name in names if found[name]}

    def product_and_sum(x, y, n, m, r):
        y[n] = x[n] * m - r

    def rounded_product(x, y, n, m, r):
        y[n] = libdevice.fmul_rn(x[n], m) - r

    def rounded_product64(x, y, n, m, r):
        y[n] = libdevice.dmul_rn(x[n], m) - r

    assert operations(recentred) == {"FADD": 2} and operations(product_and_sum) == {"FFMA": 1}
    assert operations(rounded_product) == {"FMUL": 1, "FADD": 1}
    wide = FIVE.replace("float32", "float64")
    assert operations(rounded_product64, wide) == {"DMUL": 1, "DADD": 1}


def test_division_and_root_are_rounded_correctly_unless_fastmath(compiler):
    ptx = compile_kernel(root, FIVE, "sm_80").ptx
    assert "div.rn.f32" in ptx and "sqrt.rn.f32" in ptx
    assert ".ftz" not in ptx and ".approx" not in ptx
    # A set of fastmath's flags is taken for all of them: the docstring of simt.cuda_access says so.
    for setting in (True, {"contract"}):
        ptx, _ = cuda.compile_ptx(root, FIVE, cc=(8, 0), fastmath=setting)
        assert "div.approx.ftz.f32" in ptx and "sqrt.approx.ftz.f32" in ptx


# The kernels of the library.


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernel(compiler, kernel):
    made = kernel.factory(*kernel.parameters)
    for arch in ARCHITECTURES:
        code = compile_kernel(made, kernel.signature, arch, **kernel.options)
        assert complaints(code, **kernel.expectations) == [], arch


# The kernels of the pages.


def on_page(chapter, name):
    """What a cell of the chapter defines by this name, among the names of the ladder."""
    (path,) = [path for path in CHAPTERS if path.stem.startswith(f"{chapter}-")]
    cells = [c.source for c in read(path).cells if re.search(rf"^def {name}\(", c.source, re.M)]
    names = {**vars(cuda_access), **vars(ladder), "math": math}
    return executed(f"{cells[0]}\n", name, names)[name]


PASS = f"void({'float32[::1], ' * 8}int64, int64)"
SUMS = f"void({'float32[::1], ' * 4}int64, int64)"
HALVES = (
    "void(uint16[::1], uint16[::1], uint16[::1], float32[::1], float32[::1], uint16[::1],"
    " float32[::1], int64, int64)"
)
TWO = "void(float32[::1], float32[::1])"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    "chapter, name, made_of, signature, expectations",
    [
        (13, "double", (), TWO, {"threads": 256}),
        (13, "load_apart", (), TWO.replace(")", ", int64)"), {"threads": 32}),
        (14, "backward_kernel", (256, 4), PASS, {"threads": 256, "blocks": 2}),
        (14, "rms_backward_kernel", (256, 4), HALVES, {"threads": 256, "blocks": 2}),
        (14, "add_parts", (), SUMS, {"threads": 1024}),
        (14, "two_sums", (), TWO, {"threads": 64}),
    ],
)
def test_kernel_of_a_page(compiler, chapter, name, made_of, signature, expectations, arch):
    kernel = on_page(chapter, name)
    kernel = kernel(*made_of) if made_of else getattr(kernel, "py_func", kernel)
    code = compile_kernel(kernel, signature, arch)
    assert complaints(code, **expectations) == []


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_what_chapter_14_shows_is_what_was_timed(compiler, arch):
    """The stored times are those of the ladder: the same instructions, in the same order."""

    def instructions(kernel, signature):
        sass = compile_kernel(kernel, signature, arch).sass
        return re.findall(r"^\s+/\*[0-9a-f]{4}\*/\s+(.*?);", sass, re.M)

    for threads, V in ((256, 4), (256, 1), (32, 1)):
        taught = instructions(ladder.fused_partials(threads, V, 4), PASS)
        shown = instructions(on_page(14, "backward_kernel")(threads, V), PASS)
        assert len(shown) > 300 and shown == taught
    assert instructions(on_page(14, "add_parts"), SUMS) == instructions(
        ladder.second_stage(1024), SUMS
    )


def blocks_of_code(chapter):
    (path,) = [path for path in CHAPTERS if path.stem.startswith(f"{chapter}-")]
    return re.findall(r"^```\{code-block\} python\n(.*?)^```", read(path).text, re.M | re.S)


def test_load4_in_plain_numba(compiler):
    (text,) = [text for text in blocks_of_code(13) if "def load4(" in text]
    names = executed(text, "load4", {"cuda": cuda})

    def sums_of_four(x, y):
        i = cuda.grid(1)
        a, b, c, d = names_load4(x, 4 * i)
        y[i] = a + b + c + d

    names_load4 = names["load4"]
    operations = compile_kernel(sums_of_four, TWO, "sm_90").operations
    assert operations["LDG.E.128"] == 1 and operations["LDG.E"] == 0


def test_a_reader_can_compile_without_a_gpu(compiler, tmp_path, monkeypatch):
    (text,) = [text for text in blocks_of_code(13) if "compile_ptx" in text]
    monkeypatch.chdir(tmp_path)
    executed(text, "ptx", {})
    code = gpu_code.assemble((tmp_path / "kernel.ptx").read_text(), "sm_90")
    assert code.operations["LDG.E.128"] == 12 and code.spill_stores == 0
