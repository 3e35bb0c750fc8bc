"""What is measured, and by what. ``python -m benchmarks.accuracy``, ``.normcheck``, ``.cpu`` and
``.gpu`` are commands.

:mod:`.cpu` and :mod:`.gpu` are times, taken by the stopwatches of :mod:`lnbook.measure`;
:mod:`.accuracy` is digits, :mod:`.normcheck` what :mod:`normcheck` finds in what :mod:`.norms`
loads; :mod:`.command` is what they have in common. ``results`` has a folder for each kind of file.
"""
