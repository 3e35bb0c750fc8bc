"""The figure helpers change nothing outside their figure, and glue speaks MyST-NB's language."""

import matplotlib
import pytest

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402

from lnlib import figures  # noqa: E402  (the backend is chosen first)


def test_figures_are_transparent_and_leave_the_settings_alone():
    before = dict(matplotlib.rcParams)
    fig, axes = figures.figure(4, 2, columns=2, xscale="log")
    assert len(axes) == 2 and axes[0].get_xscale() == "log"
    assert fig.get_facecolor()[3] == axes[0].get_facecolor()[3] == 0
    assert dict(matplotlib.rcParams) == before
    plt.close(fig)


def test_glue_outside_a_notebook_does_nothing(capsys):
    figures.glue(a=1)
    assert capsys.readouterr().out == ""


def test_glue_stores_what_the_page_reads(monkeypatch):
    IPython = pytest.importorskip("IPython")
    shown = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: object())
    monkeypatch.setattr("IPython.display.display", lambda data, raw, metadata: shown.append((data, metadata)))
    figures.glue(error="3e-16")
    (data, metadata), = shown
    assert data == {"application/papermill.record/text/plain": "3e-16"}
    assert metadata["scrapbook"] == {"name": "error", "mime_prefix": "application/papermill.record/"}
