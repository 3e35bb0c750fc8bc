"""How fast are layer norms on the CPU? ``python -m benchmarks.cpu`` measures.

* :mod:`~benchmarks.cpu.norms`: RMS norm and residuals, beside PyTorch's.
* :mod:`~benchmarks.cpu.limit`: two of them in C, the same loops as far as a compiler takes them.
* :mod:`~benchmarks.cpu.command`: the cases, who takes part, the processes that measure, the file.
* :mod:`~benchmarks.cpu.assembly`: what the compiler made of the loops.
* :mod:`~benchmarks.cpu.machine`: rates of one core, from which :mod:`lnlib.cost` predicts.
"""
