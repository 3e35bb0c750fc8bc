"""The interpreter of PTX, on texts written by hand: what it refuses. What it computes, compiled
kernels show (test_compiled.py).
"""

import numpy as np
import pytest

from ptx import machine, text

HEAD = """
.version 8.0
.target sm_80
.visible .entry k(.param .u64 x, .param .u64 y, .param .u32 n)
.maxntid 64, 1, 1
{
    .reg .pred %p<5>;
    .reg .b16 %h<5>;
    .reg .b32 %r<20>;
    .reg .f32 %f<9>;
    .reg .f64 %fd<5>;
    .reg .b64 %rd<12>;
    .shared .align 4 .b8 board[256];
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mad.lo.s32 %r5, %r3, %r4, %r2;
    mul.wide.s32 %rd3, %r5, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
"""
# A thread's own number is in %f1, and goes from there to y. Its place in the board is in %r7, its
# neighbour's in %r8.
WHOLE = HEAD + "ld.global.f32 %f1, [%rd4]; %s st.global.f32 [%rd5], %f1; ret; }"
BOARD = (
    "mov.u32 %r6, board; shl.b32 %r7, %r2, 2; xor.b32 %r8, %r7, 128; cvt.u64.u32 %rd6, %r7;"
    " cvt.u64.u32 %rd7, %r8;"
)


def run(body, threads=32, written=1):
    """Launch a block with this body; x and y are at addresses that are multiples of 256."""
    x, y = np.zeros((2, 4 * threads), "u1")
    memory = [
        (0x1000, x.nbytes, x, np.full_like(x, written)),
        (0x9000000, y.nbytes, y, np.zeros_like(y)),
    ]
    parameters = {"x": 0x1000, "y": 0x9000000, "n": 0}
    kernel, order = text.read(WHOLE.replace("%s", body)), np.random.default_rng(0)
    machine.launch(kernel, 1, threads, parameters, memory, order)


STORE = "add.s32 %r9, %r6, %r7; cvt.u64.u32 %rd6, %r9; st.shared.f32 [%rd6], %f1;"
LOAD = "add.s32 %r9, %r6, %r8; cvt.u64.u32 %rd7, %r9; ld.shared.f32 %f1, [%rd7];"


HALF = "setp.lt.s32 %p1, %r2, 32; "


@pytest.mark.parametrize(
    "match, body, options",
    [
        ("some threads only", "setp.lt.s32 %p1, %r2, 5; @%p1 bar.sync 0;", {}),
        ("32 of 64 threads", HALF + "@%p1 bra OUT; bar.sync 0; OUT:", {"threads": 64}),
        (
            "at this barrier, others at another",
            HALF + "@%p1 bra A; bar.sync 0; bra B; A: bar.sync 0; B:",
            {"threads": 64},
        ),
        (
            "not all lanes",
            "setp.lt.s32 %p1, %r2, 5; @%p1 shfl.sync.bfly.b32 %r8, %r2, 1, 31, -1;",
            {},
        ),
        ("mask without", "setp.eq.s32 %p1, %r2, 3; vote.sync.any.pred %p2, %p1, 65535;", {}),
        ("in no allocation", "ld.global.f32 %f1, [%rd3];", {}),
        ("byte 131 of an allocation of 128", "ld.global.f32 %f1, [%rd4+4];", {}),
        ("no multiple of 4", "add.s64 %rd4, %rd4, 2; ld.global.f32 %f1, [%rd4];", {}),
        ("no multiple of 16", "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd4];", {}),
        ("nobody has written", "", {"written": 0}),
        ("of 256 bytes of shared", BOARD + "ld.shared.f32 %f1, [%rd6+256];", {}),
        ("race|nobody has written", BOARD + STORE + LOAD, {"threads": 64}),
        # A store behind a load, of what another still needs.
        ("race", BOARD + STORE + "bar.sync 0;" + LOAD + STORE, {"threads": 64}),
        ("unknown instruction", "ld.f32 %f1, [%rd4];", {}),
        ("compiled for 64", "", {"threads": 96}),
    ],
)
def test_what_a_kernel_must_not_do(match, body, options):
    with pytest.raises(text.PtxError, match=match):
        run(body, **options)
