"""The interactive figures in a browser: what they compute, keyboard, mouse, no scripts."""

import re

import numpy as np
import pytest
from browsing import Visit, contrast
from pages import CHAPTERS

from lnlib import layer_norm_backward, layer_norm_forward
from lnlib.variance import ALGORITHMS

pytest.importorskip("sphinx")  # the environment of the book; the library is also tested without it
import interactive_pictures  # noqa: E402
from ln_figures import OFF, SCRIPTS, STATIC  # noqa: E402

PAGES = {
    match[1]: path.stem
    for path in CHAPTERS
    for match in re.finditer(r"^```\{interactive\} (\w+)$", path.read_text(encoding="utf-8"), re.M)
}
figures = pytest.mark.parametrize("name", PAGES)


# ---- What the scripts compute
# -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def scripts(browser):
    """A page that holds one figure and nothing else, each time anew."""
    page = browser.new_page(reduced_motion="reduce")  # no movement of 200 ms to wait for
    yield lambda name: load(page, name)
    page.close()


def load(page, name):
    """The page with this figure alone."""
    page.goto("about:blank")  # where no script has run
    page.set_content(f'<div data-ln-figure="{name}" data-ln-label="x"></div>')
    page.add_style_tag(path=STATIC / "ln.css")
    for script in SCRIPTS[name]:
        page.add_script_tag(path=STATIC / script)
    return page


def test_static_pictures_are_what_the_scripts_draw(browser):
    for name, svg in interactive_pictures.pictures(browser):
        # Not byte by byte: sines may differ in the last digit between browsers, and places have two
        # decimals.
        texts = svg, (STATIC / f"ln_{name}.svg").read_text("utf-8")
        drawn, kept = (re.split(r"(-?\d+\.?\d*)", text) for text in texts)
        assert drawn[::2] == kept[::2], name
        places = np.array(drawn[1::2], float), np.array(kept[1::2], float)
        np.testing.assert_allclose(*places, atol=0.011, err_msg=name)


def test_variances_are_the_librarys_bit_for_bit(scripts):
    page = scripts("variance")
    offsets, u = page.evaluate("[LnVariance.OFFSETS, LnVariance.U]")
    assert offsets == [round(10 ** (k / 8)) for k in range(8, 57)] and u == 2.0**-24
    for seed in (1, 2, 77):
        state, noise = seed, []
        for _ in range(64):
            state = (1664525 * state + 1013904223) % 2**32
            noise.append((2 * (state / 2**32) - 1) * np.sqrt(3))
        x = (np.array(offsets, float)[:, None] + noise).astype(np.float32)
        found = page.evaluate(
            """seed => LnVariance.OFFSETS.map(offset => {
            const x = LnVariance.row(offset, seed), v = LnVariance;
            return [x, v.naive(x), v.welford(x), v.twoPass(x), v.recentred(x), v.exact(x)];
        })""",
            seed,
        )
        np.testing.assert_array_equal(np.array([row[0] for row in found], np.float32), x)
        for i, name in enumerate(("naive", "welford", "two-pass", "recentred"), start=1):
            expected = ALGORITHMS[name].function(x)[2].ravel()
            got = np.array([row[i] for row in found])
            assert (got == expected).all(), (
                f"{name}: {got[got != expected]} {expected[got != expected]}"
            )
        # Float64: 64 roundings of 2**-53 at most for the sum, and a few for each term. The mean is
        # off by 65 roundings at most, so the variance by the square of 65 * 1e7 * 2**-53, which is
        # 5e-15.
        X = x.astype(float)
        X = X - np.round(X.mean(axis=-1, keepdims=True))  # exact: whole numbers off float32 numbers
        np.testing.assert_allclose(
            [row[5] for row in found], X.var(axis=-1), rtol=80 * 2.0**-53 + 5e-15
        )
        # Naive lands on the ticks, wherever they are drawn.
        spacing = np.array(page.evaluate("LnVariance.OFFSETS.map(LnVariance.spacing)"))
        assert (spacing == np.spacing(np.square(np.array(offsets, float)).astype(np.float32))).all()
        assert all(row[1] % step == 0 for row, step in zip(found, spacing) if step > 0.02)
        assert (
            ALGORITHMS["naive"].function(x)[2] < 0
        ).any()  # or the figure would have nothing to show


def numbers(text):
    return [float(n.replace("\u2212", "-")) for n in re.findall(r"[\u2212-]?\d+\.\d+", text)]


def state(page):
    """x and the second row of sliders (g or gamma), as shown."""
    shown = numbers(" ".join(page.locator(".ln-sliders output").all_inner_texts()))
    return np.array(shown[0::2]), np.array(shown[1::2])


def says(page):
    return page.locator(".ln-say").inner_text()


def put(page, places):
    """Move sliders: the number of each among all of the figure, and its value."""
    for place, value in places.items():
        page.locator("input").nth(place).evaluate(
            "(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", value
        )


def click(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def drag(page, x, y, right, down):
    """From a place by so many pixels."""
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + right, y + down, steps=4)
    page.mouse.up()


def lengths(v, xhat):
    up = np.ones(3) / np.sqrt(3)
    size = np.linalg.norm(xhat)
    radial = (
        xhat / size if size > 1e-9 else np.zeros(3)
    )  # equal numbers: the mean's rounding has no direction
    return abs(v @ up), abs(v @ radial), np.linalg.norm(v - (v @ up) * up - (v @ radial) * radial)


def check_split(page):
    x, g = state(page)
    _, cache = layer_norm_forward(x, np.ones(3), np.zeros(3), eps=0.02)
    dx = layer_norm_backward(g, cache)[0]
    shown = numbers(" ".join(page.locator(".ln-table td").all_inner_texts()))
    # Two decimals are shown: half a unit of the last. 1e-9: rounding at a tie.
    np.testing.assert_allclose(shown[0::2], lengths(g, cache.xhat), atol=0.005 + 1e-9)
    np.testing.assert_allclose(shown[1::2], lengths(dx, cache.xhat), atol=0.005 + 1e-9)
    rstd = cache.rstd.item()
    np.testing.assert_allclose(
        numbers(says(page)), [x.mean(), x.std(), 1 / rstd, 0.02 * rstd**3, rstd], atol=0.005 + 1e-9
    )


def test_split_by_keyboard_and_mouse(scripts):
    page = scripts("split")
    check_split(page)
    before = state(page)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    x, g = state(page)
    np.testing.assert_allclose(
        x - before[0], [0.1, 0, 0], atol=1e-9
    )  # two steps of the first slider
    assert page.locator("input").first.get_attribute("aria-valuetext") == f"{x[0]:.2f}"
    check_split(page)

    # Dragging keeps the height over the plane of zero sum, so the mean.
    for handle, moved in ((0, 0), (1, 1)):
        old = state(page)
        box = page.locator(".ln-handles circle").nth(handle).bounding_box()
        drag(page, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, -45, -10)
        # The point is under the pointer, up to the rounding: 0.025 in two numbers and their sum,
        # 0.05 at most, in the third, and at most 70 pixels a unit.
        after = page.locator(".ln-handles circle").nth(handle).bounding_box()
        enlarged = page.locator(".ln-picture svg").bounding_box()["width"] / 380
        miss = np.hypot(after["x"] - box["x"] + 45, after["y"] - box["y"] + 10)
        assert miss <= 0.025 * np.sqrt(6) * 70 * enlarged + 1
        new = state(page)
        assert np.abs(new[moved] - old[moved]).max() > 0.2
        assert (new[1 - moved] == old[1 - moved]).all()
        assert new[moved].mean() == pytest.approx(old[moved].mean(), abs=1e-9)
        check_split(page)
    # At the sliders' limit the point stops, with the same mean.
    page.mouse.down()
    page.mouse.move(2, 2, steps=5)
    page.mouse.up()
    g = state(page)[1]
    assert 1.8 < np.abs(g).max() <= 2 and g.mean() == pytest.approx(new[1].mean(), abs=1e-9)


def test_forward_is_the_librarys(scripts):
    page = scripts("forward")

    def check():
        x, gamma = state(page)
        y, cache = layer_norm_forward(x, gamma, np.zeros(3), eps=0.01)
        shown = np.reshape(
            numbers(" ".join(page.locator(".ln-table td").all_inner_texts())), (3, 3)
        )
        np.testing.assert_allclose(shown, [x - x.mean(), cache.xhat, y], atol=0.005 + 1e-9)
        return shown

    before = check()
    click(page, "x + 0.3")
    assert (check() == before).all()  # a shift of the row is not seen
    click(page, "x / 2")
    click(page, "\u03b3 = 1")
    c, xhat, y = check()
    assert (y == xhat).all() and "keeps the centring" in says(page)
    assert np.linalg.norm(xhat) < np.linalg.norm(before[1])


def test_variance_by_keyboard(scripts):
    page = scripts("variance")
    offset = page.locator("output").inner_text()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert int(page.locator("output").inner_text().replace(",", "")) > int(offset.replace(",", ""))
    click(page, "Next negative variance")
    assert "negative, and its root is NaN" in says(page)
    exact, naive = [numbers(page.locator(".ln-table tr").nth(i).inner_text())[0] for i in (1, 2)]
    assert naive < 0 < exact
    click(page, "Other numbers")
    assert numbers(page.locator(".ln-table tr").nth(1).inner_text())[0] != exact


def test_central_difference_is_float32s(scripts):
    page = scripts("step")
    steps, central, x, slope, third = page.evaluate(
        "[LnStep.STEPS, LnStep.STEPS.map(LnStep.central), LnStep.X, LnStep.slope, LnStep.third]"
    )
    f = np.float32
    assert x == f(0.7) and steps == [2.0**-k for k in range(25)]
    # The claim of the comment: phi is layer norm of (x, -x) with eps = 1. Two float32 roundings
    # more or less.
    pair = np.array([x, -x])
    y, cache = layer_norm_forward(pair, np.ones(2), np.zeros(2), eps=1.0)
    assert page.evaluate("LnStep.phi(LnStep.X)") == pytest.approx(y[0], rel=3 * 2.0**-24)
    # Moving x moves both numbers of the pair.
    assert slope == pytest.approx(
        np.diff(-layer_norm_backward(np.array([1.0, 0.0]), cache)[0]).item(), rel=1e-14
    )
    # the second difference of the slope is its second derivative up to h^2 / 12 times the fourth,
    # below 30
    h = 1e-3
    slopes = [(t * t + 1) ** -1.5 for t in (x - h, x, x + h)]
    second_difference = (slopes[0] - 2 * slopes[1] + slopes[2]) / h**2
    assert third == pytest.approx(second_difference, abs=30 * h**2 / 12 + 4 * 2.0**-53 / h**2)

    def phi(x):
        return x / np.sqrt(x * x + f(1))

    expected = [(phi(f(x) + f(h)) - phi(f(x) - f(h))) / (f(2) * f(h)) for h in steps]
    assert all(v.dtype == np.float32 for v in expected) and central == expected


# ---- On their pages
# ---------------------------------------------------------------------------------

# The colour that an element's text has, and the first background behind it that is not transparent.
COLOURS = """() => [...document.querySelectorAll('.ln-live, .ln-live *')].filter(e => e.checkVisibility()
    && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())).map(e => {
    const style = getComputedStyle(e);
    let box = e;
    while (box && /rgba\\(.*, 0\\)|transparent/.test(getComputedStyle(box).backgroundColor)) box = box.parentElement;
    return [e.closest('svg') ? style.fill : style.color, getComputedStyle(box).backgroundColor, e.textContent];
})"""  # noqa: E501


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "split" else pytest.mark.slow) for name in PAGES],
)
def test_figure_on_its_page(visits, address, name):
    with Visit(visits, f"{address}/book/{PAGES[name]}.html", width=360) as visit:
        page = visit.page
        page.wait_for_selector(".ln-started")
        visit.stays_at(address)
        assert page.evaluate(
            """() => [...document.querySelectorAll('.ln-live *')].every(e =>
            e.closest('.ln-handles') || e.closest('caption') || e.getBoundingClientRect().right <= innerWidth)"""  # noqa: E501
        )
        assert (
            not page.locator(".ln-static").is_visible()
            and page.locator(".ln-picture svg").is_visible()
        )
        page.add_style_tag(content="* { transition: none !important; }")
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.wait_for_selector(f"html[data-theme={theme}]", state="attached")
            texts = page.evaluate(COLOURS)
            assert len(texts) > 20
            for text, ground, words in texts:
                assert contrast(text, ground) >= 4.5, (
                    theme,
                    text,
                    ground,
                    words,
                )  # WCAG 2.1, 1.4.3
        # Focus can be seen, and every control says what it is.
        control = page.locator(".ln-live input").first
        control.focus()
        assert (
            control.evaluate("e => e.matches(':focus-visible') && getComputedStyle(e).outlineWidth")
            == "3px"
        )
        assert all(page.locator(".ln-live label").all_inner_texts())
        page.emulate_media(media="print")
        assert page.locator(".ln-static").is_visible() and not page.locator(".ln-live").is_visible()


@figures
def test_without_scripts(browser, site, name):
    page = browser.new_page(java_script_enabled=False)
    page.goto((site / f"book/{PAGES[name]}.html").as_uri())
    figure = page.locator(f"figure:has([data-ln-figure={name}])")
    box = figure.locator(".ln-static svg").bounding_box()
    assert box["width"] > 200 and box["height"] > 150
    assert OFF in figure.inner_text()
    assert len(figure.locator(".ln-static").get_attribute("aria-label")) >= 40
    page.close()


def test_scripts_are_loaded_only_where_they_are_used(site):
    used = {}
    for name, stem in PAGES.items():
        used.setdefault(stem, set()).update(SCRIPTS[name])
    every = {script for scripts in SCRIPTS.values() for script in scripts}
    for path in CHAPTERS:
        html = (site / f"book/{path.stem}.html").read_text(encoding="utf-8")
        found = re.findall(r'<script[^>]* src="\.\./_static/(ln_\w+\.js)[^"]*"', html)
        assert set(found) & every == used.get(path.stem, set())
        assert len(found) == len(set(found))
