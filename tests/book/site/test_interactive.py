"""The interactive figures in a browser: what they compute, keyboard, mouse, no scripts."""

import re

import numpy as np
import pytest
from browsing import Visit
from pages import CHAPTERS

from lnbook.figures.watched import PLAYERS
from lnlib import layer_norm_backward, layer_norm_forward
from lnlib.variance import ALGORITHMS

pytest.importorskip("sphinx")  # the environment of the book; the library is also tested without it
import interactive_pictures  # noqa: E402
from ln_figures import OFF, SCRIPTS, STATIC, figure_of  # noqa: E402

PAGES = {
    match[1]: path.stem
    for path in CHAPTERS
    for match in re.finditer(r"^```\{interactive\} (\w+)$", path.read_text(encoding="utf-8"), re.M)
}
pytestmark = pytest.mark.site


# ---- What the scripts compute


@pytest.fixture(scope="module")
def scripts(browser):
    """A page that holds one figure and nothing else, each time anew."""
    page = browser.new_page(reduced_motion="reduce")  # no movement of 200 ms to wait for

    def load(name):
        page.goto("about:blank")  # where no script has run
        page.set_content(figure_of(name, "x"))
        page.add_style_tag(path=STATIC / "ln.css")
        for script in SCRIPTS[name]:
            page.add_script_tag(path=STATIC / script)
        return page

    yield load
    page.close()


def test_static_pictures_are_what_the_scripts_draw(visits):
    for name, svg in interactive_pictures.pictures(visits):
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
        # Or the figure would have nothing to show.
        assert (ALGORITHMS["naive"].function(x)[2] < 0).any()


def numbers(text):
    return [float(n.replace("\u2212", "-")) for n in re.findall(r"[\u2212-]?\d+\.\d+", text)]


def state(page):
    """x and the second row of sliders (g or gamma), as shown."""
    shown = numbers(" ".join(page.locator(".ln-sliders output").all_inner_texts()))
    return np.array(shown[0::2]), np.array(shown[1::2])


def says(page):
    return page.locator(".ln-say").inner_text()


def lengths(v, xhat):
    up = np.ones(3) / np.sqrt(3)
    size = np.linalg.norm(xhat)
    # Equal numbers: the mean's rounding has no direction.
    radial = xhat / size if size > 1e-9 else np.zeros(3)
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
    # Two steps of the first slider.
    np.testing.assert_allclose(x - before[0], [0.1, 0, 0], atol=1e-9)
    assert page.locator("input").first.get_attribute("aria-valuetext") == f"{x[0]:.2f}"
    check_split(page)

    # Dragging keeps the height over the plane of zero sum, so the mean.
    for handle, moved in ((0, 0), (1, 1)):
        old = state(page)
        box = page.locator(".ln-handles circle").nth(handle).bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - 45, y - 10, steps=4)
        page.mouse.up()
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

    story = ("Start again", "nearly lost"), ("along x", "nearly lost"), ("small x", "times ")
    for made, said in story:
        page.locator(".ln-story button", has_text=made).click()
        assert f"along x\u0302: {said}" in page.locator(".ln-picture").text_content()


@pytest.mark.parametrize("name", PLAYERS)
def test_player(scripts, name):
    """Steps by keyboard change words, line and picture; it plays, and shows a race's two lines."""
    data = PLAYERS[name]().json().encode()
    assert len(data) + sum((STATIC / script).stat().st_size for script in SCRIPTS[name]) <= 40_000
    page, seen = scripts(name), []
    code, steps = page.locator(".ln-live .ln-code"), page.locator("input")
    back, forward = (page.get_by_role("button", name=said) for said in ("Back", "Forward"))
    page.keyboard.press("Tab")
    for key in ("ArrowLeft", "ArrowRight", "Space"):
        line = code.locator("[aria-current]").inner_text()
        seen.append((says(page), line, page.locator(".ln-picture svg").inner_html()))
        page.keyboard.press(key)
    assert seen[0] == seen[2] and not {*seen[0]} & {*seen[1]}
    page.locator(".ln-say").filter(has_not_text=says(page)).wait_for()
    page.get_by_role("button", name="Pause").press("Space")
    steps.press("End")
    assert forward.is_disabled() and says(page) not in seen[0] + seen[1]
    back.click()
    for choice in page.locator(".ln-panel button").all()[1:] if name == "row_sum" else ():
        choice.click()
        while not page.locator("svg .ln-race").count():
            forward.click()
        lines = code.locator(".ln-here, .ln-raced").all_inner_texts()
        assert [line.split()[0] for line in lines] == ["parts[cuda.threadIdx.x", "total"]
        assert "syncthreads" in code.locator(".ln-off").inner_text() and "A race at" in says(page)
    back.click()  # where an arrow is drawn, which does not grow for whom it should not
    moves = "all => all.map(e => getComputedStyle(e).animationName)"
    assert {*page.locator(".ln-flow").evaluate_all(moves)} == {"none"}


# ---- On their pages


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "split" else pytest.mark.slow) for name in PAGES],
)
def test_figure_on_its_page(visits, address, name):
    with Visit(visits, f"{address}/book/{PAGES[name]}.html", width=360, maths=False) as visit:
        page = visit.page
        page.wait_for_selector(".ln-started")
        visit.stays_at(address)
        assert page.evaluate(
            """() => [...document.querySelectorAll('.ln-live *')].every(e =>
            e.closest('.ln-handles') || e.closest('caption') || e.getBoundingClientRect().right <= innerWidth)"""  # noqa: E501
        )
        assert not page.locator(".ln-static").is_visible()
        assert page.locator(".ln-picture svg").is_visible()
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


@pytest.mark.parametrize("name", PAGES)
def test_without_scripts(browser, site, name):
    page = browser.new_page(java_script_enabled=False)
    page.goto((site / f"book/{PAGES[name]}.html").as_uri())
    figure = page.locator(f"figure:has([data-ln-figure~={name}])")
    box = figure.locator(".ln-static svg").bounding_box()
    assert box["width"] > 200 and box["height"] > 150
    assert OFF in figure.inner_text()
    assert len(figure.locator(".ln-static").get_attribute("aria-label")) >= 40
    page.close()
