"""The classroom kit: graded assignments from the book, and the grader. Run ``python -m classroom
--help``.

The book's solutions are public, so what is graded are variants of its exercises, drawn by a private
seed.

- :mod:`.tasks`: the tasks and their variants.
- :mod:`.key`: the private assignment.json, and the tasks drawn again from it.
- :mod:`.assignment`: an assignment as files; :mod:`.hidden` is what its source for nbgrader calls.
- :mod:`.grader`: a folder of submissions graded.  :mod:`.rehearse` tries it on made-up ones.
- :mod:`.similar`: which submissions are alike.
"""
