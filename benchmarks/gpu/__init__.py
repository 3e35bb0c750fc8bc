"""How fast are layer norms on a GPU? ``python -m benchmarks.gpu`` measures.

* :mod:`~benchmarks.gpu.contestants`: who takes part, and on what arrays;
  :mod:`~benchmarks.gpu.triton_kernels`.
* :mod:`.correctness`, :mod:`.stages`, :mod:`.rms`, :mod:`.sweep`: what is measured, in stages.
* :mod:`~benchmarks.gpu.command`: a process for each stage, the file;
  :mod:`~benchmarks.gpu.tables`: what is shown.
* :mod:`~benchmarks.gpu.code`, :mod:`~benchmarks.gpu.profile`: what the compiler makes of the
  kernels, without a GPU; what NVIDIA's tools and the interpreter count.
"""
