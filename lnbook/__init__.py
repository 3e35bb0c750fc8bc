"""What the pages of the book need beyond the mathematics: exercises, figures, measurements and
stored results.

- :mod:`~lnbook.exercises`: the exercises of each chapter; ``check`` judges an answer and names the
  mistake in it.
- :mod:`~lnbook.figures`: the figures and tables of the pages, in one style.
- :mod:`~lnbook.measure`: stopwatches for the CPU and the GPU, and what is timed with them.
- :mod:`~lnbook.results`: reads the results of benchmarks that are stored in the repository.
- :mod:`~lnbook.forms`: other forms of the backward pass, to be compared with that of ``lnlib``;
  :mod:`~lnbook.frameworks`: the passes of three frameworks, re-created.
- :mod:`~lnbook.training`: a small model, trained with any backward pass.
- :mod:`~lnbook.gradient_tests`: tests of a backward, and which mistakes each kills;
  :mod:`~lnbook.habits`: published ones, and what tests do out of habit.
- :mod:`~lnbook.gpu_survey`: are the GPU kernels right on this machine, and how fast are they?

Importing this package loads none of them.
"""
