"""What is measured, and by what. ``python -m benchmarks.accuracy``, ``.cpu`` and ``.gpu`` are commands.

:mod:`.common` is what they share, :mod:`.cpu` and :mod:`.gpu` are times, :mod:`.accuracy` digits; ``results`` has a folder
for each kind of file.
"""
