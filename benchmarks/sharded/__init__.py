"""Layer norm cut among processes: digits, bytes, times. ``python -m benchmarks.sharded`` (see
benchmarks/README.md).

* :mod:`.cases`: the inputs, and the judge: exact arithmetic.
* :mod:`.ours`: ``lnlib.sharded`` under MPI, one, two and four ranks beside one process; started by
  mpiexec.
* :mod:`.dtensor`: PyTorch's DTensor, two processes; :mod:`.jax_shards`: JAX, devices that are parts
  of one process.
* :mod:`.command`: runs what is installed, prints tables, writes the file.
"""
