"""The graded tasks: variants of the book's exercises, drawn by a private seed."""

import functools
import random

from . import breaks, check, derive, fuse
from .task import Task, diagnose

__all__ = ["Task", "chapters", "diagnose", "draw", "drawn"]


@functools.cache
def _makers():
    """(chapter, maker) of each task by id; a variant is drawn only to learn them."""
    makers = (*derive.TASKS, *check.TASKS, *breaks.TASKS, *fuse.TASKS)
    tasks = [(maker(random.Random(0)), maker) for maker in makers]
    return {task.id: (task.chapter, maker) for task, maker in tasks}


def chapters():
    """Numbers of the chapters that have tasks."""
    return tuple(sorted({chapter for chapter, _ in _makers().values()}))


def drawn(id, seed):
    """The one task with this id, in the variant that ``seed`` draws."""
    if id not in _makers():
        raise ValueError(f"id: found {id!r}, expected one of {', '.join(_makers())}")
    return _makers()[id][1](random.Random(f"{seed}/{id}"))


def draw(chapters, seed):
    """The tasks of these chapters, in the variants that ``seed`` (an int) draws.

    A task's variant depends on the seed and on the task alone, not on the other chapters.
    """
    there = {chapter for chapter, _ in _makers().values()}
    unknown = sorted(set(chapters) - there)
    if unknown or not chapters:
        raise ValueError(f"chapters: found {', '.join(map(str, unknown)) or 'none'}, expected some of "
                         f"{', '.join(map(str, sorted(there)))}")
    return tuple(drawn(id, seed) for id, (chapter, _) in sorted(_makers().items()) if chapter in chapters)
