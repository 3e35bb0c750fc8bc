"""Compiled CUDA kernels run without a GPU: an interpreter of PTX in NumPy, and a driver that is not
there.

Numba makes PTX of a kernel: text, for an imagined machine. NVIDIA's programs make the code of a
real one of it.

* :mod:`ptx.text` reads PTX.
* :mod:`ptx.operations` says what each instruction computes, on arrays with an element for each
  thread.
* :mod:`ptx.memory` checks every access: bounds, alignment, numbers that nobody has written, races
  in shared memory.
* :mod:`ptx.machine` runs the threads of a launch: branches, barriers, warps in a random order.
* ``driver.c`` and :mod:`ptx.driver` stand in for NVIDIA's driver. Numba compiles and launches as it
  would on a GPU; what it launches goes to the machine.
* :mod:`ptx.plugin` starts that driver for a run of pytest.

So what runs is PTX of the architecture asked for, by way of Numba's own launches. The last step,
from PTX to the code of a GPU, is not: no GPU took part, and times mean nothing here.
"""
