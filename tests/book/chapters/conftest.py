"""Figures are drawn without a screen and closed after each test; random numbers have one seed."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

plt.switch_backend("agg")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture
def rng():
    return np.random.default_rng(0)
