"""The questions without code: their form, the page, the notebook; and the numbers in the answers of chapters 1 to 6.

Each assertion about a number names its question. What is printed on paper is tested in test_browser.py.
"""

import re

import numpy as np
import pytest
from pages import CHAPTERS, words

from lnlib import layer_norm_backward, layer_norm_forward, reference
from lnlib.gradcheck import adjoint_test, central_difference, random_projection, tolerance
from lnlib.mutants import MUTANTS
from lnlib.variance import naive, normalise

chapters = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
FORM = re.compile(r"^(?P<fence>`{3,})\{question\}\n(?P<asked>.+?)\n\n---\n(?P<told>.+?)\n(?P=fence)$", re.M | re.S)
U, U32 = 2.0**-53, 2.0**-24
MUTANT = {mutant.name: mutant.backward for mutant in MUTANTS}


def norm(a):
    return np.linalg.norm(a)


def backward(dy, x, gamma=None, beta=0.0, eps=0.0):
    """dx, dgamma, dbeta, r and xhat for any row."""
    gamma = np.ones(x.shape[-1]) if gamma is None else gamma
    _, cache = layer_norm_forward(x, gamma, beta + 0 * gamma, eps=eps)
    return *layer_norm_backward(dy, cache), cache.rstd, cache.xhat


def says(label, *parts):
    """Assert that the answer to a question, "3.1" say, contains all of these."""
    chapter, number = map(int, label.split("."))
    told = list(FORM.finditer(CHAPTERS[chapter - 1].read_text(encoding="utf-8")))[number - 1]["told"]
    for part in parts:
        assert re.search(rf"(?<![\w.]){re.escape(str(part))}(?!\w|\.\d)", told), f"{label}: no {part!r}"


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# ---- Form -------------------------------------------------------------------------------------------


@chapters
def test_each_chapter_asks_three_to_five_questions(path):
    section = path.read_text(encoding="utf-8").split("\n## Questions\n")[1].split("\n## ")[0]
    found = list(FORM.finditer(section))
    assert 3 <= len(found) == section.count("{question}") <= 5
    for match in found:
        assert 20 <= words(re.sub(r"\$[^$]+\$", "x", match["told"])) <= 120, match["asked"]


@pytest.mark.site
@chapters
def test_page_and_notebook_hold_the_same_questions(site, path):
    import nbformat
    from bs4 import BeautifulSoup

    def letters(text):
        return re.sub(r"[^a-z0-9]", "", text.lower())

    page = BeautifulSoup((site / f"book/{path.stem}.html").read_text(encoding="utf-8"), "html.parser")
    on_page = page.select("div.ln-question")
    cells = nbformat.read(site / f"notebooks/{path.stem}.ipynb", as_version=4).cells
    in_notebook = [cell.source for cell in cells if cell.source.startswith("**Question")]
    assert len(on_page) == len(in_notebook) >= 3
    for number, (block, markdown) in enumerate(zip(on_page, in_notebook), 1):
        name = f"Question {int(path.stem[:2])}.{number}"
        assert block["id"] == f"question-{number}"
        assert block.select_one(".ln-question-title .caption-number").text.strip() == name
        assert markdown.startswith(f"**{name}**\n\n")
        question, answer = markdown.split("\n\n<details><summary>Answer</summary>\n\n")
        assert answer.endswith("\n\n</details>")
        (folded,) = block.select("details.ln-answer")
        assert folded.find("summary").text == "Answer" and not folded.has_attr("open")
        for part in block.select(".math"):
            part.replace_with("MATHS")
        inside = folded.extract()
        for source, written in ((block, question), (inside, answer)):
            plain = [p.text for p in source.select("p, pre") if "MATHS" not in p.text]
            assert all(letters(text) in letters(re.sub(r"\]\([^)]*\)", "", written)) for text in plain)


# ---- The numbers that answers state -----------------------------------------------------------------


def test_chapter_1(rng):
    for spike in (1e3, 1e6):  # 1.1
        row = np.zeros(100)
        row[0] = spike
        xhat = layer_norm_forward(row, np.ones(100), np.zeros(100), eps=0.0)[0]
        assert row.std() == pytest.approx(spike / 1000 * 9900**0.5)
        assert xhat.max() == pytest.approx(99**0.5)
    says("1.1", f"About {xhat.max():.0f} both", "990", "$-10$", 9900, r"\sqrt{99}")

    x = rng.standard_normal((3, 8)) * [[1], [3e-3], [1e-4]]  # 1.2, metres
    one, zero = np.ones(8), np.zeros(8)
    metres = layer_norm_forward(x, one, zero, eps=1e-5)[0]
    np.testing.assert_allclose(layer_norm_forward(1000 * x, one, zero, eps=10.0)[0], metres, rtol=1e-13)
    says("1.2", r"$\varepsilon = 10$", f"{1e-5**0.5 * 1000:.0f} mm")
    unchanged = layer_norm_forward(1000 * x, one, zero, eps=1e-5)[0]
    longer = [norm(a) / norm(b) for a, b in zip(unchanged, metres)]
    assert longer[0] < 1.001 and longer[1] > 1.3 and longer[2] > 10

    x = rng.standard_normal((8, 8))  # 1.3
    c = x - x.mean(axis=-1)
    i, j = 2, 5
    assert c.shape == x.shape and c[i, j] == x[i, j] - x[j].mean()
    with pytest.raises(ValueError, match="broadcast"):
        np.ones((3, 8)) - np.ones((3, 8)).mean(axis=-1)

    h, W, b, P = rng.standard_normal((5, 6)), rng.standard_normal((6, 8)), rng.standard_normal(8), np.eye(8) - 1 / 8  # 1.4
    before, after, only_b = h @ W + b, h @ (W @ P) + b @ P, h @ W + b @ P
    np.testing.assert_allclose(after.mean(axis=-1), 0, atol=1e-14)
    assert np.abs(only_b.mean(axis=-1)).min() > 1e-3
    np.testing.assert_allclose(layer_norm_forward(after, one, zero)[0], layer_norm_forward(before, one, zero)[0],
                               rtol=1e-12)


def test_chapter_2(rng):
    x = rng.standard_normal(9) + 2  # 2.1
    claimed = 2 * x / 9 - 2 * x.mean()
    assert claimed.sum() == pytest.approx(2 * x.mean() - 2 * 9 * x.mean())
    shift = (np.var(x + 1e-3) - np.var(x)) / 1e-3
    assert abs(shift) < 1e-10 and abs(claimed.sum()) > 1

    x = rng.standard_normal(1000)  # 2.2
    for g, low, high in ((np.ones(1000), 0.9, 1.0), (rng.standard_normal(1000), 0.02, 0.09)):
        dx, _, _, r, xhat = backward(g, x)
        diagonal = r * g * (1 - 1 / 1000 - xhat**2 / 1000)
        assert low < norm(diagonal - dx) / norm(r * g) < high

    x, w = rng.standard_normal((2, 6))  # 2.3
    for gamma, share in ((np.ones(6), True), (rng.uniform(0.5, 1.5, 6), False)):
        first, second = backward(w, x, gamma), backward(w + 7, x, gamma)
        assert np.allclose(first[0], second[0], rtol=0, atol=1e-13) == share
        np.testing.assert_allclose(second[1] - first[1], 7 * first[4], rtol=1e-12)
        np.testing.assert_allclose(second[2] - first[2], 7, rtol=1e-13)

    short, long = backward(w, x)[0], backward(w, 10 * x)[0]  # 2.4
    assert norm(short) / norm(long) == pytest.approx(10)
    assert norm(short) / norm(x) / (norm(long) / norm(10 * x)) == pytest.approx(100)
    says("2.4", "a tenth", "a hundredth", "100 times as far")


def test_chapter_3(rng):
    g = x = np.array([1.0, -1.0])  # 3.1
    dx, _, _, r, xhat = backward(g, x)
    code = r * (g - g.mean() - xhat * g.mean() * xhat.mean())
    assert (xhat == x).all() and (g * xhat).mean() == 1 and (dx == 0).all() and (code == r * [1, -1]).all()

    dy, x = rng.standard_normal((2, 3, 5))  # 3.2
    for rows in (dy[:1], x[:1]), (dy[[0, 0]], x[[0, 0]]):
        _, dgamma, _, _, xhat = backward(*rows)
        assert np.allclose((rows[0] * xhat).mean(axis=0), dgamma) == (len(xhat) == 1)
    says("3.2", "Only test 3")

    gamma = np.array([1.0, 0.5, 0.0, 2.0, -1.0])  # 3.3
    other = dy + [0, 0, 9, 0, 0]
    assert np.array_equal(backward(dy, x, gamma)[0], backward(other, x, gamma)[0])
    dx, dgamma, *_ = backward(dy, x, gamma)
    assert np.abs(dx[:, 2]).min() > 1e-2 and abs(dgamma[2]) > 0.1

    numbers = 8 * 1024 * 4096  # 3.4
    says("3.4", r"small against its $\beta$")
    says("3.4", f"{numbers / 1e6:.1f} million", f"{4 * numbers / 1e6:.0f} MB", f"{64 * 4 * numbers / 1e9:.1f} GB",
         f"{64 * 4 * numbers / 4096 / 1e6:.0f} MB", "4096 times less")


def test_chapter_4(rng):
    rounding = 4 * U / np.array([1e-12, 1e-13])  # 4.1
    assert 1e-4 < rounding[0] < 1e-3 < rounding[1] < 1e-2 and 1e-12**2 / 6 < 1e-20
    best = (12 * U) ** (1 / 3)
    assert 0.9e-5 < best < 1.2e-5 and f"{best**2 / 6 + 4 * U / best:.0e}" == "6e-11"
    says("4.1", "$10^{-3}$", "near $10^{-5}$", r"$6 \cdot 10^{-11}$")

    x, dy, u = rng.standard_normal((3, 4, 8))  # 4.2
    gamma, beta = rng.uniform(0.5, 1.5, 8), rng.standard_normal(8)
    y, cache = layer_norm_forward(x, gamma, beta)
    dx, dgamma, dbeta = layer_norm_backward(dy, cache)
    quotient = central_difference(lambda a: layer_norm_forward(a, gamma, beta)[0], x, 1e-5, dy=dy)
    assert norm(quotient - dx) / norm(dx) < 1e-9

    assert not (dbeta - (dbeta + 1)).max() >= 1e-6  # 4.3
    for name, passes in (("missing-projection", False), ("missing-mean", None)):
        wrong = MUTANT[name](dy, cache)[0]
        assert (dx - wrong).max() >= 1e-6
        assert np.allclose(wrong.sum(axis=-1), 0, rtol=0, atol=1e-13) == (passes is False)
    upwards = np.where((gamma * dy).mean(axis=-1, keepdims=True) > 0, dy, -dy)
    assert (layer_norm_backward(upwards, cache)[0] - MUTANT["missing-mean"](upwards, cache)[0]).max() < 1e-6

    def centred(v):  # 4.4
        return cache.rstd * (v - v.mean(axis=-1, keepdims=True))

    limit = tolerance("float64", x.size)
    assert adjoint_test(lambda u: gamma * centred(u), lambda dy: centred(gamma * dy), u, dy) <= limit
    wrong = centred(gamma * dy), dgamma, dbeta
    assert random_projection(lambda *a: layer_norm_forward(*a)[0], (x, gamma, beta), dy, wrong, rng=rng) > 1e-3


def test_chapter_5(rng):
    x = rng.standard_normal((3, 7))  # 5.1
    seen, sizes = rng.standard_normal(7), []
    for beta in (0.0, 0.5, seen):
        y = layer_norm_forward(x, np.ones(7), beta + np.zeros(7))[0]
        sizes.append(norm(backward(y, x, eps=1e-5)[0]))
    shows = []
    for beta in (0.0, 0.5):
        y, cache = layer_norm_forward(x, np.ones(7), beta + np.zeros(7))
        right = layer_norm_backward(y, cache)[0]
        shows.append({name for name, wrong in MUTANT.items()
                      if norm(wrong(y, cache)[0] - right) > 1e-3 * norm(cache.rstd * y)})
    assert shows[0] | {"missing-mean"} == shows[1] != shows[0]
    assert sizes[1] == pytest.approx(sizes[0], rel=1e-6) and sizes[0] < 1e-3 < 0.5 < sizes[2]
    assert norm(backward(seen + 0 * x, x, eps=1e-5)[0]) == pytest.approx(sizes[2], rel=1e-3)  # J beta

    let_through = []  # 5.2
    for shape in ((6, 6), (1, 7), (2, 3, 6), (3, 4, 7)):
        x, dy = rng.standard_normal((2, *shape))
        right, _, _, r, xhat = backward(dy, x)
        rows = x.size // shape[-1]
        wrong = r * (dy - (dy.sum(-1, keepdims=True) + xhat * (dy * xhat).sum(-1, keepdims=True)) / rows)
        let_through += [shape] if np.allclose(wrong, right) else []
    assert let_through == [(6, 6), (2, 3, 6)]
    says("5.2", "$(6, 6)$ and $(2, 3, 6)$:")

    for D, rows in ((768, 12), (768, 1200), (20_000, 12)):  # 5.3
        x, dy = rng.standard_normal((2, rows, D))
        _, cache = layer_norm_forward(x, np.ones(D), np.zeros(D))
        right = layer_norm_backward(dy, cache)[0]
        error = norm(MUTANT["missing-projection"](dy, cache)[0] - right) / norm(right)
        # The part is chi-squared with one degree of freedom for each row: 2 / rows is its relative variance.
        assert abs(error**2 * D - 1) < 4 * (2 / rows) ** 0.5
        assert (error < 1e-2) == (D > 10_000)
    says("5.3", f"{100 * 768**-0.5:.0f} %", "$D = 10^4$")

    assert abs((767 / 768) ** 0.5 - 1) < 1e-3  # 5.4
    assert f"{abs((1 + 1e-5) ** -0.5 - 1 / (1 + 1e-5)):.0e}" == "5e-06"
    flat = 1e-5**0.5
    assert flat / (flat + 1e-5) > 0.99
    says("5.4", f"{(3 / 4) ** 0.5:.2f}", f"{flat / (flat**2 + 1e-5) ** 0.5:.2f}", r"$5 \cdot 10^{-6}$")


def test_chapter_6(rng):
    formats = np.array([2.0**-53, 2.0**-24, 2.0**-8])  # 6.1
    left = -np.log10(formats * 1000**2)
    assert round(left[0]) == 10 and round(left[1]) == 1 and left[2] < 0
    assert 0.9e8 < formats[0] ** -0.5 < 1e8
    says("6.1", f"${U32 * 1e6:.2f}$", "ten digits, one, and none", "$10^8$", *(formats**-0.5)[1:].astype(int))
    noise = rng.standard_normal((64, 1024))
    for dtype, u in (("float64", U), ("float32", U32)):  # measured: within a factor of ten
        x = (1000 + noise).astype(dtype)
        error = reference.relative_error(naive(x)[2].astype(float), x.astype(float).var(axis=-1, keepdims=True))
        assert 0.1 < error / (u * 1e6) < 10

    far = (1e4 + rng.random((64, 1)) + noise).astype(np.float32)  # 6.2
    exact = reference.layer_norm(far, np.ones(1024), np.zeros(1024)).y
    mean = far.mean(axis=-1, keepdims=True, dtype=float)
    ordered = np.sort(far, axis=-1).mean(axis=-1, keepdims=True)
    errors = []
    for c in (far - ordered, far - mean.astype(np.float32), (far - mean).astype(np.float32)):
        assert c.dtype == np.float32
        v = (c * c).mean(axis=-1, keepdims=True)
        errors.append(reference.relative_error(c / np.sqrt(v + np.float32(1e-5)), exact))
    assert min(errors[:2]) > 1e-4 and errors[2] < 3 * U32
    assert 1e-4 < reference.relative_error(normalise(far, "two-pass"), exact) < 1e-3
    assert round(np.spacing(np.float32(1e4)) / 2, 4) == 5e-4
    says("6.2", "Only change 3", r"$5 \cdot 10^{-4}$")

    rows = 1e6 + rng.random((64, 1)) + noise  # 6.3
    one, zero = np.ones(1024), np.zeros(1024)
    wanted = layer_norm_forward(rows, one, zero)[0]
    assert np.spacing(np.float32(1e6)) == 1 / 16
    says("6.3", f"{1 / 16 / 12**0.5:.3f}", "About 2 %", "$1/16$", "$1/32$", "$10^{-7}$")
    for shift, low, high in ((0, 0.015, 0.022), (1e6, 1e-8, 1e-7)):
        stored = (rows - shift).astype(np.float32)
        y = layer_norm_forward(stored, one.astype(np.float32), zero.astype(np.float32))[0]
        assert low < norm(y - wanted) / norm(wanted) < high

    def pairwise(a):  # 6.4
        half = len(a) // 2
        return a[0] if len(a) == 1 else pairwise(a[:half]) + pairwise(a[half:])

    def moved(D, constants):
        a = constants.astype(np.float32)
        return (pairwise(np.broadcast_to(a, (D, a.size))) / np.float32(D) != a).mean()

    constants = rng.standard_normal(5000)
    assert moved(1024, constants) == 0 == moved(768, np.arange(1, 1000))
    # The share of one sample of 5000 scatters by 0.005.
    assert abs(moved(768, constants) - 1 / 7) < 0.02
    says("6.4", "one random constant in seven")
