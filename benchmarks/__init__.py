"""What is measured, and by what. ``python -m benchmarks.accuracy``, ``.validate``, ``.cpu``,
``.gpu``, ``.sharded`` are commands.

:mod:`.cpu` and :mod:`.gpu` are times, taken by the stopwatches of :mod:`lnbook.measure`;
:mod:`.accuracy` is digits, :mod:`.validate` what :mod:`normcheck` finds, :mod:`.sharded` both of
processes; ``results`` has a folder for each kind of file.
"""
