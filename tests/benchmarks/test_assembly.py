"""The instructions in the machine code of a loop are counted by register."""

import pytest

from benchmarks.cpu import assembly

X86 = """vmovups (%rax,%rdx,4), %zmm1; vfmadd231ps %zmm0, %zmm1, %zmm2; vfnmadd213pd %ymm0, %ymm1, %ymm2;
vaddps (%rax), %ymm3, %ymm4; vsubps %xmm3, %xmm3, %xmm4; vextractf64x4 $1, %zmm0, %ymm1; vxorps %xmm0, %xmm0, %xmm0;
vcvtps2pd %ymm0, %zmm1; vaddss %xmm3, %xmm3, %xmm4; vdivsd %xmm3, %xmm3, %xmm4; vfmadd132sd %xmm3, %xmm3, %xmm4;
vmovntps %zmm1, (%rax); addq $8, %rax"""  # noqa: E501
ARM = """ldp q0, q1, [x0], #32; fmla v2.4s, v0.4s, v1.4s; fadd v3.2d, v0.2d, v1.2d; fmul.4s v3, v0, v1;
fadd s0, s1, s2; fmadd d0, d1, d2, d3; stnp q0, q1, [x0]; add x0, x0, #8"""  # noqa: E501


@pytest.mark.parametrize(
    "code, expected",
    [
        (X86, {"zmm": 1, "ymm": 2, "xmm": 1, "scalar": 3, "fma": 3, "streaming": 1}),
        (ARM, {"v": 3, "scalar": 2, "fma": 2, "streaming": 1}),
        ("", {}),
    ],
)
def test_instructions_are_counted_by_register(code, expected):
    lines = [line.strip().replace(" ", "\t", 1) for line in code.split(";")]
    assert assembly.count("".join(f"\t{line}\n" for line in lines)) == expected
