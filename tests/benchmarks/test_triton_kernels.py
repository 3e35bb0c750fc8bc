"""The Triton kernels of the benchmark, in Triton's own interpreter: no GPU is needed."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")


@pytest.mark.parametrize(("N", "D"), [(1, 1), (5, 7), (3, 128), (9, 100)])
def test_against_pytorch_in_double_precision(N, D, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # read when triton is imported
    pytest.importorskip("triton", reason="needs Triton")
    from benchmarks.gpu import triton_kernels

    drawn = torch.Generator().manual_seed(N)
    x, dy = torch.randn(2, N, D, generator=drawn)
    gamma, beta = torch.randn(2, D, generator=drawn)
    y, mean, rstd = triton_kernels.forward(x, gamma, beta, 1e-5, 1)
    found = y, *triton_kernels.backward(dy, x, mean, rstd, gamma, 1, 4)
    exact = [a.double().requires_grad_() for a in (x, gamma, beta)]
    right = torch.nn.functional.layer_norm(exact[0], (D,), *exact[1:], 1e-5)
    right.backward(dy.double())
    for name, a, b in zip(("y", "dx", "dgamma", "dbeta"), found, (right, *(e.grad for e in exact))):
        # Sums of D or N terms of size 1 in float32, and rows of which rstd is at most 316.
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5, msg=name)
