"""The machine code of the CUDA kernels, made without a GPU; and that this check can fail."""

import functools
import json
import math
import os
import re

import pytest

from benchmarks.gpu import code as gpu_code
from benchmarks.gpu.code import (
    ARCHITECTURES,
    KERNELS,
    compile_kernel,
    complaints,
    count,
    family,
    fits,
)
from simt.cuda_access import FULL, cuda, device, float32, int32, libdevice, load4, store4


@pytest.fixture(scope="module")
def compiler():
    """The programs that compile; where they are promised, a skip would be a hole."""
    if why := gpu_code.missing():
        pytest.fail(why) if os.environ.get("LN_REQUIRE_CUDA_COMPILER") else pytest.skip(why)


# What needs no compiler.


@pytest.mark.parametrize(
    "registers, threads, blocks, fit",
    [
        (64, 1024, 1, True),
        (65, 1024, 1, False),
        (128, 512, 1, True),
        (129, 512, 1, False),
        (127, 256, 2, True),
        (130, 256, 2, False),
        (255, 256, 1, True),
        (255, 288, 1, False),  # 256 * 288 > 65536
        (168, 384, 1, True),
        (169, 384, 1, False),  # 169 * 384 < 65536, but 169 are given as 176
        (176, 320, 1, False),  # 176 * 320 < 65536, but one quarter has three of the ten warps
    ],
)
def test_fits(registers, threads, blocks, fit):
    assert fits(registers, threads, blocks) is fit


def test_count_by_family():
    opcodes = {
        "LDG.E.128.SYS": "LDG.E.128",
        "LDG.E.128.CONSTANT": "LDG.E.128",
        "LDG.E": "LDG.E",
        "LD.E.64": "LD.E.64",
        "LDG.E.U16.CONSTANT": "LDG.E.U16",
        "STS.64": "STS.64",
        "REDG.E.ADD.F32.FTZ.RN.STRONG.GPU": "RED",
        "RED.E.ADD.F32.FTZ.RN.STRONG.GPU": "RED",
        "SHFL.BFLY": "SHFL",
        "CALL.REL.NOINC": "CALL",
    }
    assert {opcode: family(opcode) for opcode in opcodes} == opcodes
    sass = """
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;   /* 0x00000a00ff017624 */
                                                                             /* 0x000fca00078e00ff */
        /*0050*/              @!P0 LDG.E.128.SYS R4, [R2] ;                  /* 0x0000000002047381 */
        /*0060*/             @!UPT UIADD3 URZ, URZ, URZ, URZ ;
        /*0070*/                   F2F.F64.F32 R2, R4 ;
        /*1080*/                   DADD R2, R2, R6 ;
        /*1090*/                   MUFU.RCP64H R5, R3 ;
        /*10a0*/                   NOP;
    """  # noqa: E501
    assert count(sass) == {
        "IMAD": 1,
        "LDG.E.128": 1,
        "UIADD3": 1,
        "F2F": 1,
        "DADD": 1,
        "MUFU": 1,
        "all": 6,
        "float64": 3,
    }


def test_missing_is_named(monkeypatch):
    monkeypatch.setattr(gpu_code, "tool", lambda name: None if name == "cuobjdump" else name)
    assert gpu_code.missing().startswith("cuobjdump not found")


# Small kernels.


@device
def warp_sum(value):
    for offset in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(FULL, value, offset)
    return value


def normalised(x, y, n):
    """Squares of a block's rows of four, over their sum: everything a layer norm does to memory."""
    shared = cuda.shared.array(8, float32)
    thread = int32(cuda.threadIdx.x)
    i = (int32(cuda.blockIdx.x) * int32(256) + thread) * int32(4)
    v = cuda.local.array(4, float32)
    if i < n:
        v[0], v[1], v[2], v[3] = load4(x, i)
    total = warp_sum(v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3])
    if thread & int32(31) == 0:
        shared[thread >> int32(5)] = total
    cuda.syncthreads()
    total = float32(0)
    for w in range(8):
        total += shared[w]
    r = float32(1) / math.sqrt(total)
    if i < n:
        store4(y, i, v[0] * r, v[1] * r, v[2] * r, v[3] * r)


GOOD = {
    "threads": 256,
    "blocks": 4,
    "none": ("RED", "LDG.E"),
    "at_least": {"LDG.E.128": 1, "STG.E.128": 1, "SHFL": 5, "BAR": 1, "STS": 1},
}
FLAT = "void(float32[::1], float32[::1], int32)"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nothing_is_wrong_with_a_good_kernel(compiler, arch):
    code = compile_kernel(normalised, FLAT, arch)
    assert complaints(code, **GOOD) == [] and code.shared == 32
    assert code.registers > 8 and code.operations["all"] > 50 and code.arch == arch


def test_ptx_of_the_oldest_architecture_will_do(compiler):
    """ptxas makes the same of it as of PTX made for the architecture itself."""
    code = compile_kernel(normalised, FLAT, "sm_90")
    own, _ = cuda.compile_ptx(normalised, FLAT, cc=(9, 0))
    assert ".target sm_75" in code.ptx and ".target sm_90" in own
    assert gpu_code.assemble(own, "sm_90").operations == code.operations


def literal(x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = x[i] * 1.1


def four_loads(x, y, n):
    i = cuda.grid(1) * 4
    if i < n:
        y[i], y[i + 1], y[i + 2], y[i + 3] = x[i], x[i + 1], x[i + 2], x[i + 3]


def not_in_registers(x, y, n):
    v = cuda.local.array(
        64, float32
    )  # registers have no index that is known only when the kernel runs
    for j in range(64):
        v[j] = float32(0)
    for j in range(n):
        v[j & 63] += x[j]
    for j in range(64):
        y[j] = v[j]


def many_registers(x, y, n):
    """96 numbers are alive at the same time, whatever the compiler does: the last is needed
    first.
    """
    v = cuda.local.array(96, float32)
    i = cuda.grid(1)
    for j in range(96):
        v[j] = x[i + j * n]
    cuda.syncthreads()
    for j in range(96):
        y[i + j * n] = v[95 - j] * v[j]


def atomic(x, y, n):
    cuda.atomic.add(y, cuda.threadIdx.x, x[cuda.grid(1)])


def much_shared(x, y, n):
    shared = cuda.shared.array(10240, float32)
    shared[cuda.threadIdx.x] = x[cuda.grid(1)]
    cuda.syncthreads()
    y[cuda.grid(1)] = shared[n]


def quotient(x, y, n):
    y[cuda.grid(1)] = x[cuda.grid(1)] / float32(n)


@functools.cache
def compiled(kernel, signature, arch, *options):
    return compile_kernel(kernel, signature, arch, **dict(options))


@pytest.mark.parametrize(
    "kernel, signature, options, expectations, said",
    [
        (literal, FLAT, {}, {}, "float64 instructions"),
        (literal, "void(float64[::1], float64[::1], int32)", {}, {}, "float64 instructions"),
        (quotient, "void(float32[:], float32[:], int32)", {}, {}, "generic access to memory"),
        (four_loads, FLAT, {}, {"at_least": {"LDG.E.128": 1}}, "0 LDG.E.128, expected 1 at least"),
        (four_loads, FLAT, {}, {"at_least": {"STG.E.128": 1}}, "0 STG.E.128, expected 1 at least"),
        (not_in_registers, FLAT, {}, {}, "256 bytes of local memory"),
        (
            many_registers,
            FLAT,
            {},
            {"threads": 1024},
            "1024 threads x 1 blocks are more than an SM has",
        ),
        (
            many_registers,
            FLAT,
            {},
            {"threads": 256, "blocks": 4},
            "256 threads x 4 blocks are more than an SM has",
        ),
        (many_registers, FLAT, {"max_registers": 32}, {}, "spills"),
        (
            much_shared,
            FLAT,
            {},
            {"blocks": 2},
            "40960 bytes of shared memory x 2 blocks are more than an SM has",
        ),
        (atomic, FLAT, {}, {"none": ("RED",)}, "1 RED, expected none"),
        (quotient, FLAT, {"fastmath": True}, {}, "div.approx.ftz in the PTX"),
    ],
)
def test_a_bad_kernel_is_found(compiler, kernel, signature, options, expectations, said):
    found = complaints(
        compiled(kernel, signature, "sm_90", *options.items()), **{"threads": 32} | expectations
    )
    assert any(said in what for what in found), found


def test_what_is_allowed_is_no_complaint(compiler):
    float64_code = compile_kernel(literal, "void(float64[::1], float64[::1], int32)", "sm_80")
    assert complaints(float64_code, threads=32, float64=True) == []
    fast = compile_kernel(quotient, FLAT, "sm_80", fastmath=True)
    assert complaints(fast, threads=32, approximate=True) == []


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


def widen(x, y, n):
    a, b, c, d = load4(x, n)
    store4(y, n, float32(a) + float32(b), float32(c), float32(d), 1)


def test_store4_converts_as_an_assignment_does(compiler):
    code = compile_kernel(widen, "void(float16[::1], float16[::1], int32)", "sm_75")
    assert (
        code.operations["FADD"] == 1
        and code.operations["STG.E.64"] == 1
        and code.operations["float64"] == 0
    )
    assert complaints(code, threads=32) == []


@pytest.mark.parametrize(
    "signature, found",
    [
        ("void(float32[:], float32[:], int32)", "array: found array(float32, 1d, A)"),
        ("void(float32[:, ::1], float32[:, ::1], int32)", "array: found array(float32, 2d, C)"),
        ("void(boolean[::1], boolean[::1], int32)", "array: found array(bool, 1d, C)"),
        ("void(float32[::1], float32[::1], float32)", "i: found float32, expected an integer"),
    ],
)
def test_bad_arguments_are_named(compiler, signature, found):
    from numba.core.errors import TypingError

    def plain(x, y, n):
        a, b, c, d = load4(x, n)

    def stored(x, y, n):
        store4(y, n, 1, 2, 3, 4)

    for name, kernel in (("load4", plain), ("store4", stored)):
        with pytest.raises(TypingError) as error:
            compile_kernel(kernel, signature, "sm_75")
        assert f"{name}: {found}" in str(error.value)


# The arithmetic that the kernels count on.


def recentred(x, y, n, m, r):
    y[n] = (x[n] - m) - r


def root(x, y, n, m, r):
    y[n] = m / math.sqrt(x[n])


FIVE = "void(float32[::1], float32[::1], int32, float32, float32)"


@pytest.mark.parametrize("arch", [ARCHITECTURES[0], ARCHITECTURES[-1]])
def test_nothing_is_reordered_and_only_products_are_fused(compiler, arch):
    def operations(kernel, signature=FIVE):
        found = compile_kernel(kernel, signature, arch).operations
        return {
            name: found[name]
            for name in ("FADD", "FMUL", "FFMA", "DADD", "DMUL", "DFMA")
            if found[name]
        }

    def product_and_sum(x, y, n, m, r):
        y[n] = x[n] * m - r

    def rounded_product(x, y, n, m, r):
        y[n] = libdevice.fmul_rn(x[n], m) - r

    def rounded_product64(x, y, n, m, r):
        y[n] = libdevice.dmul_rn(x[n], m) - r

    assert operations(recentred) == {"FADD": 2} and operations(product_and_sum) == {"FFMA": 1}
    assert operations(rounded_product) == {"FMUL": 1, "FADD": 1}
    assert operations(rounded_product64, FIVE.replace("float32", "float64")) == {
        "DMUL": 1,
        "DADD": 1,
    }


def test_order_of_the_subtractions(compiler):
    """x - m first: its result goes into the second subtraction, and r is subtracted from that."""
    ptx = compile_kernel(recentred, FIVE, "sm_80").ptx
    (first, _, _), (_, left, _) = re.findall(r"sub\.f32\s+(%f\d+), (%f\d+), (%f\d+);", ptx)
    assert left == first


def test_division_and_root_are_rounded_correctly_unless_fastmath(compiler):
    ptx = compile_kernel(root, FIVE, "sm_80").ptx
    assert (
        "div.rn.f32" in ptx and "sqrt.rn.f32" in ptx and ".ftz" not in ptx and ".approx" not in ptx
    )
    # A set of fastmath's flags is taken for all of them: the docstring of simt.cuda_access says so.
    for setting in (True, {"contract"}):
        ptx, _ = cuda.compile_ptx(root, FIVE, cc=(8, 0), fastmath=setting)
        assert "div.approx.ftz.f32" in ptx and "sqrt.approx.ftz.f32" in ptx


# The kernels of the library.


def test_there_are_kernels_to_check():
    assert len({kernel.name for kernel in KERNELS}) == len(KERNELS) > 0


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernel(compiler, kernel):
    made = kernel.factory(*kernel.parameters)
    found = {
        arch: complaints(
            compile_kernel(made, kernel.signature, arch, **kernel.options), **kernel.expectations
        )
        for arch in ARCHITECTURES
    }
    assert found == dict.fromkeys(ARCHITECTURES, [])


def test_the_file_of_results_is_of_these_kernels():
    records = json.loads(gpu_code.RESULT.read_text())["records"]
    assert {(r["kernel"], r["arch"]) for r in records} == {
        (k.name, arch) for k in KERNELS for arch in ARCHITECTURES
    }
