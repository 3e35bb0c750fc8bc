"""The graded tasks: variants of the book's exercises, drawn by a private seed.

In the order in which to read it:

- :mod:`.task`: what a task is, and which of its mistakes an answer makes.
- :mod:`.deriving`, :mod:`.checking`, :mod:`.breaking`, :mod:`.fusing`: the tasks, a file a part of
  the book.
- :mod:`.norm`, :mod:`.order`: what they share, one normalisation with parameters and sums in a
  given order.
- :mod:`.own`: tasks of your own, from a folder.
"""

from random import Random

from . import breaking, checking, deriving, fusing  # noqa: F401  their classes are the tasks
from .task import TASKS, Task

__all__ = ["TASKS", "Task", "chapters", "draw", "drawn"]


def chapters():
    """Numbers of the chapters that have tasks."""
    return tuple(sorted({task.chapter() for task in TASKS.values()} - {None}))


def drawn(id, seed):
    """The one task with this id, in the variant that ``seed`` draws."""
    if id not in TASKS:
        raise ValueError(f"id: found {id!r}, expected one of {', '.join(TASKS)}")
    return TASKS[id](Random(f"{seed}/{id}"))


def draw(asked, seed, own=()):
    """The tasks of the chapters ``asked``, and those with the ids ``own``, in the variants that
    ``seed`` draws.

    A task's variant depends on the seed and on the task alone, not on the others.
    """
    unknown = sorted(set(asked) - set(chapters()))
    if unknown or not (asked or own):
        raise ValueError(
            f"chapters: found {', '.join(map(str, unknown)) or 'none'}, expected some of "
            f"{', '.join(map(str, chapters()))}"
        )
    ids = sorted(id for id, task in TASKS.items() if task.chapter() in asked)
    return tuple(drawn(id, seed) for id in (*ids, *sorted(own)))
