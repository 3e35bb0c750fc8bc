"""What is measured, and by what. ``python -m benchmarks.accuracy``, ``.validate``, ``.cpu``, ``.gpu``, ``.sharded`` are commands.

:mod:`.cpu` and :mod:`.gpu` are times, taken by the stopwatches of :mod:`lnlib.measure`; :mod:`.accuracy` is digits,
:mod:`.validate` what :mod:`lnlib.validate` finds, :mod:`.sharded` both of processes; ``results`` has a folder for each kind of file.
"""
