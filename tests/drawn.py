"""What Matplotlib's figures show."""


def with_data(ax):
    """The lines of a panel without those that stand in its key alone."""
    return [line for line in ax.lines if len(line.get_xdata())]
