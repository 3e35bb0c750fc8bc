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


def run(body, x=None, blocks=1, threads=32, rng=0, written=1):
    """y after a launch with this body; x and y are at addresses that are multiples of 256."""
    x = np.arange(blocks * threads, dtype="f4") if x is None else x
    y = np.full(len(x), -1, x.dtype)
    room = [np.zeros(-(-a.nbytes // 16) * 16, "u1") for a in (x, y)]
    room[0][: x.nbytes] = x.view("u1")
    memory = [
        (0x1000, x.nbytes, room[0], np.full_like(room[0], written)),
        (0x9000000, y.nbytes, room[1], np.zeros_like(room[1])),
    ]
    parameters = {"x": 0x1000, "y": 0x9000000, "n": 0}
    kernel, order = text.read(WHOLE.replace("%s", body)), np.random.default_rng(rng)
    machine.launch(kernel, blocks, threads, parameters, memory, order)
    return room[1][: y.nbytes].view(y.dtype)


def refused(match, *arguments, **options):
    with pytest.raises(text.PtxError, match=match):
        run(*arguments, **options)


STORE = "add.s32 %r9, %r6, %r7; cvt.u64.u32 %rd6, %r9; st.shared.f32 [%rd6], %f1;"
LOAD = "add.s32 %r9, %r6, %r8; cvt.u64.u32 %rd7, %r9; ld.shared.f32 %f1, [%rd7];"


@pytest.mark.parametrize("rng", range(3))
def test_a_barrier_lets_warps_exchange(rng):
    found = run(BOARD + STORE + "bar.sync 0;" + LOAD, threads=64, blocks=3, rng=rng)
    assert (found.reshape(3, 2, 32)[:, ::-1].reshape(-1) == np.arange(192)).all()


@pytest.mark.parametrize("rng", range(3))
def test_without_it_there_is_a_race_or_nothing_to_read(rng):
    refused("race|nobody has written", BOARD + STORE + LOAD, threads=64, rng=rng)
    # A store behind a load, of what another still needs.
    refused("race", BOARD + STORE + "bar.sync 0;" + LOAD + STORE, threads=64, rng=rng)
    run(BOARD + STORE + "bar.sync 0;" + LOAD + "bar.sync 0;" + STORE, threads=64, rng=rng)


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
        ("unknown instruction", "ld.f32 %f1, [%rd4];", {}),
        ("compiled for 64", "", {"threads": 96}),
    ],
)
def test_what_a_kernel_must_not_do(match, body, options):
    refused(match, body, **options)
