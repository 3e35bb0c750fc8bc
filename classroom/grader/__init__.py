"""The grader: a folder of notebooks, each run in a sandbox; points as CSV, one page of feedback a
student.

It knows no normalisation: a task is to it a thing with checks. In the order in which to read it:

- :mod:`.grade`: the commands. :mod:`.submissions` finds and reads what was handed in,
  :mod:`.roster` tells whose it is, :mod:`.schedule` judges a few at a time, :mod:`.place` is the
  folder of results.
- :mod:`.marks`: what a student gets, by :mod:`.overrides` and :mod:`.late`. :mod:`.points`,
  :mod:`.feedback`, :mod:`.pages` and :mod:`.archive` write it; :mod:`.text` makes what was handed
  in fit to be shown.
- :mod:`.judge`: points of one submission; what is expected never leaves its process.
  :mod:`.compare` is how the public example is judged, here and in the students' notebook.
- :mod:`.notebook`: a submission in its sandbox, whose functions are called over a pipe;
  :mod:`.wire` is what that carries. ``child.py``, ``forms.py``, which reads notebooks, Python and
  zips, and ``probe.py`` run inside.
- :mod:`.sandbox`, :mod:`.launch`, :mod:`.kernel`: a process that sees neither network nor files nor
  other processes. :mod:`.cgroup` counts its memory, :mod:`.core` gives it a core of its own.
- :mod:`.hostile`: submissions that do harm, or try to.
"""
