"""The norms of ``norms.csv`` as :mod:`normcheck` calls them. The column "load" names the function
that imports a module, "by" the one that takes what a project calls its norm, and more arguments.
"""

import ast
import contextlib
import functools
import importlib.util
import inspect
import operator
import os
import sys
import types


def arguments(text):
    """The dict of a text such as "eps=1e-5 beta=False"."""
    said = (one.partition("=") for one in text.split())
    return {name: ast.literal_eval(value) for name, _, value in said}


def target(row):
    """What one line of the table asks about, its project loaded."""
    os.environ["KERAS_BACKEND"] = "tensorflow" if row["by"] == "tensorflow" else "jax"
    if row["framework"] == "torch":
        import torch

        torch.set_num_threads(1)
    load, by = globals()[row["load"] or "whole"], globals()[row["by"] or "plain"]
    module, _, names = row["target"].partition(":")
    found = operator.attrgetter(*names.split(","))(load(module))
    return by(found, **arguments(row["fixed"]))


whole = importlib.import_module


def alone(name):
    """A module without its packages' own code, which would ask for a GPU or other packages."""
    packages = name.split(".")[:-1]
    for k in range(len(packages)):
        package = ".".join(packages[: k + 1])
        if package not in sys.modules:
            found = importlib.util.find_spec(package)
            if found is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = found.submodule_search_locations
    return importlib.import_module(name)


def interpreted(name):
    """A module whose Triton kernels run in Triton's interpreter, on a CPU."""
    os.environ["TRITON_INTERPRET"] = "1"
    import numpy as np
    import torch
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    libdevice.rsqrt = lambda x: tl.math.rsqrt(x)  # the interpreter has no libdevice
    # One configuration, because there is nothing to measure; floats are float32, as in kernels.
    autotune, convert = triton.autotune, interpreter._implicit_cvt
    triton.autotune = lambda configs, key, **options: autotune(configs[:1], key)

    def converted(number):
        if not isinstance(number, float):
            return convert(number)
        handle = interpreter.TensorHandle(np.array([number], np.float32), tl.float32)
        return tl.tensor(handle, tl.float32)

    interpreter._implicit_cvt = converted
    # What the packages ask about the GPU; the answers choose numbers of warps and of programs.
    gpu = types.SimpleNamespace(multi_processor_count=4, warp_size=32)
    torch.cuda.get_device_properties = lambda device=None: gpu
    torch.cuda.current_device = lambda: 0
    torch.cuda.device = lambda device: contextlib.nullcontext()
    return importlib.import_module(name) if name.startswith("fla.") else alone(name)


def of_unsloth(name):
    """Its helpers, as far as they say how a kernel is launched, without the packages they load."""
    helpers = types.ModuleType("unsloth.kernels.utils")
    helpers.calculate_settings = lambda n: (1 << (n - 1).bit_length(), 4)
    helpers.norm_num_warps = lambda table, n_cols, num_warps, device: num_warps
    helpers.torch_gpu_device = lambda device: contextlib.nullcontext()
    helpers.long_indexing = alone("unsloth.kernels.indexing").long_indexing
    sys.modules[helpers.__name__] = helpers
    zoo = sys.modules["unsloth_zoo.patching_utils"] = types.ModuleType("patching_utils")
    zoo.patch_layernorm = None
    return interpreted(name)


def of_megatron(name):
    loaded = interpreted(name)
    loaded.torch.Tensor.is_cuda = True  # which it asks for; the interpreter takes all
    return loaded


def plain(norm, **fixed):
    if not fixed:
        return norm
    if inspect.isclass(norm):
        made = functools.partialmethod(norm.__init__, **fixed)
        return type(norm.__name__, (norm,), {"__init__": made})
    return functools.partial(norm, **fixed)


def compiled(norm):
    import torch

    return torch.compile(norm, dynamic=True)


def applied(function, **fixed):
    return lambda x, gamma, eps: function.apply(x, gamma, eps, *fixed.values())


def standardized(standardize, **fixed):
    """JAX itself has a layer norm without gamma and beta."""
    return lambda x, gamma, beta, eps: standardize(x, epsilon=eps, **fixed) * gamma + beta


def linen(layer, **fixed):
    def norm(x, *rest):
        *rest, eps = rest
        made = layer(epsilon=eps, dtype=x.dtype, **fixed)
        return made.apply({"params": dict(zip(("scale", "bias"), rest))}, x)

    return norm


def haiku(layer, **fixed):
    import haiku

    def norm(x, *rest):
        *rest, eps = rest
        made = haiku.transform(lambda x: layer(-1, eps=eps, name="norm", **fixed)(x))
        return made.apply({"norm": dict(zip(("scale", "offset"), rest))}, None, x)

    return norm


def equinox(layer, **fixed):
    """It takes one row; vmap gives it the others."""
    import jax
    from equinox import tree_at

    def norm(x, *rest):
        *rest, eps = rest
        names, made = ("weight", "bias")[: len(rest)], layer(x.shape[-1], eps, **fixed)
        made = tree_at(lambda made: [getattr(made, name) for name in names], made, rest)
        return jax.vmap(made)(x.reshape(-1, x.shape[-1])).reshape(x.shape)

    return norm


def pair(array, numpy, run):
    """``run(arrays, eps)`` gives y and a function that pulls dy back, on arrays of a framework;
    ``array`` makes one of NumPy's its own, and ``numpy`` is the way back. All are contiguous.
    """

    def forward(*given):
        y, pull = run([array(one.copy()) for one in given[:-1]], given[-1])
        return numpy(y), lambda dy: [numpy(one) for one in pull(array(dy.copy()))]

    return forward, lambda dy, pull: pull(dy)


def tensorflow(norm):
    import numpy as np
    import tensorflow as tf

    def run(arrays, eps):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(arrays)
            y = norm(*arrays, axis=-1, epsilon=eps)
        return y, lambda dy: tape.gradient(y, arrays, output_gradients=dy)

    return pair(tf.constant, np.asarray, run)


def mlx(norm):
    import mlx.core as mx
    import numpy as np

    mx.set_default_device(mx.cpu)

    def run(arrays, eps):
        def call(*arrays):
            return norm(*arrays, eps)

        return call(*arrays), lambda dy: mx.vjp(call, arrays, [dy])[1]

    return pair(mx.array, np.array, run)


def tinygrad(layer):
    from tinygrad import Tensor

    def run(arrays, eps):
        made = layer(arrays[0].shape[-1], eps)
        for name, value in zip(("weight", "bias"), arrays[1:]):
            setattr(made, name, value)
        y = made(arrays[0])
        return y, lambda dy: y.gradient(*arrays, gradient=dy)

    return pair(Tensor, Tensor.numpy, run)


def paddle(norm):
    import paddle

    paddle.set_device("cpu")

    def array(one):
        return paddle.to_tensor(one, stop_gradient=False)

    def run(arrays, eps):
        y = norm(arrays[0], arrays[1].shape, *arrays[1:], eps)
        return y, lambda dy: paddle.grad(y, arrays, dy, retain_graph=True)

    return pair(array, lambda one: one.numpy(), run)


def thinc(layer):
    """It takes rows, and a model keeps its gradients, so each call has a model."""

    def forward(x, gamma, beta):
        model = layer(x.shape[-1])
        model.set_param("G", gamma)
        model.set_param("b", beta)
        y, back = model(x.reshape(-1, x.shape[-1]), is_train=True)
        return y.reshape(x.shape), (model, back)

    def backward(dy, saved):
        model, back = saved
        dx = back(dy.reshape(-1, dy.shape[-1])).reshape(dy.shape)
        return dx, model.get_grad("G"), model.get_grad("b")

    return forward, backward
