"""Draw the README's picture from chapter 1's own cell: python tools/readme_picture.py"""

import re
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "layer norm, backwards"
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)
import numpy as np  # noqa: E402

from lnbook.figures import deriving  # noqa: E402
from lnlib.layernorm import layer_norm_forward  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
page = (ROOT / "book/01-forward-pass.md").read_text(encoding="utf-8")
cell = re.search(r"^    name: fig-geometry\n.*?\n---\n(.*?)```", page, re.S | re.M)[1]
exec(
    cell,
    {
        "np": np,
        "deriving": deriving,
        "layer_norm_forward": layer_norm_forward,
        "glue": lambda **values: None,
    },
)
fig = plt.gcf()
# A light ground: the README has no dark variant of it.
fig.savefig(
    ROOT / "book/_static/geometry.svg",
    facecolor="white",
    bbox_inches="tight",
    metadata={"Date": None},
)
