"""PyTorch's DTensor, two processes with gloo: ``python -m benchmarks.sharded.dtensor``. Prints
JSON.

``torch.nn.functional.layer_norm`` of a sharded x; PyTorch decides what is sent. Gradients of
parameters are then brought to where the parameters are, as an optimiser needs them. What is sent is
read off the calls of collectives.
"""

import json
import os
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .cases import CUTS, EPS, RATIOS, D, arrays, errors, sent

RANKS, NAME = 2, "PyTorch DTensor"
PLACEMENTS = {"rows": (Shard(0), Replicate()), "features": (Shard(1), Shard(0))}


class Collectives(TorchDispatchMode):
    """Remembers [operation, bytes that this rank brings] of every collective."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # ask again with what DTensor makes of it
        name = function._schema.name
        operation = name.partition("::")[2]
        if name.startswith("_c10d_functional::") and not operation.startswith(("wait", "_wrap")):
            self.found.append([operation, args[0].nbytes])
        return function(*args, **(kwargs or {}))


def both_passes(mesh, how, ratio):
    """y, dx, dgamma, dbeta, whole; messages of the forward and the backward pass."""
    of_x, of_parameters = PLACEMENTS[how]
    x, gamma, beta, dy = (
        distribute_tensor(torch.from_numpy(a), mesh, [where])
        for a, where in zip(arrays(ratio), (of_x, of_parameters, of_parameters, of_x))
    )
    for tensor in (x, gamma, beta):
        tensor.requires_grad_()
    with Collectives() as collectives:
        y = torch.nn.functional.layer_norm(x, (D,), gamma, beta, EPS)
        y = y.redistribute(placements=[of_x])
        forward = len(collectives.found)
        y.backward(dy)
        gradients = [
            t.grad.redistribute(placements=[where])
            for t, where in ((x, of_x), (gamma, of_parameters), (beta, of_parameters))
        ]
        found = collectives.found
    return (
        [t.detach().full_tensor().numpy() for t in (y, *gradients)],
        found[:forward],
        found[forward:],
    )


def work(rank, folder):
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS
    )
    torch.set_num_threads(1)
    mesh, records = init_device_mesh("cpu", (RANKS,)), []
    for how in CUTS:
        for ratio in RATIOS:
            results, forward, backward = both_passes(mesh, how, ratio)
            records += errors(NAME, how, RANKS, ratio, results)
        records += sent(NAME, how, RANKS, forward, backward)
    if rank == 0:
        print(json.dumps({"records": records}))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.spawn(work, args=(place,), nprocs=RANKS)
