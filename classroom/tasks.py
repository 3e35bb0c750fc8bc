"""The graded tasks: variants of the book's exercises, drawn by a private seed."""

import random

from . import breaks, check, derive, fuse
from .task import Task, diagnose

__all__ = ["Task", "chapters", "diagnose", "draw", "drawn"]

_MAKERS = (*derive.TASKS, *check.TASKS, *breaks.TASKS, *fuse.TASKS)


def _by_chapter():
    """Makers of each chapter; a variant is drawn only to learn its chapter."""
    found = {}
    for maker in _MAKERS:
        found.setdefault(maker(random.Random(0)).chapter, []).append(maker)
    return dict(sorted(found.items()))


def chapters():
    """Numbers of the chapters that have tasks."""
    return tuple(_by_chapter())


def drawn(id, seed):
    """The one task with this id, in the variant that ``seed`` draws."""
    for task in draw(chapters(), seed):
        if task.id == id:
            return task
    raise ValueError(f"id: found {id!r}, expected that of a task")


def draw(chapters, seed):
    """The tasks of these chapters, in the variants that ``seed`` (an int) draws.

    A task's variant depends on the seed and on the task alone, not on the other chapters.
    """
    makers = _by_chapter()
    unknown = sorted(set(chapters) - set(makers))
    if unknown or not chapters:
        raise ValueError(f"chapters: found {', '.join(map(str, unknown)) or 'none'}, expected some of "
                         f"{', '.join(map(str, makers))}")
    return tuple(maker(random.Random(f"{seed}/{maker.__name__}"))
                 for chapter in sorted(set(chapters)) for maker in makers[chapter])
