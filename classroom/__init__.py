"""The classroom kit: graded assignments from the book, and the grader. Run ``python -m classroom --help``.

The book's solutions are public, so what is graded are variants of its exercises, drawn by a private seed.
"""
