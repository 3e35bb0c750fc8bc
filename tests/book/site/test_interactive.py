"""The interactive figures in a browser: what they compute, by keyboard and mouse, both themes, no
scripts.
"""

import re

import numpy as np
import pytest
from browsing import Visit, contrast
from pages import CHAPTERS

from lnlib import layer_norm_backward, layer_norm_forward
from lnlib.variance import ALGORITHMS

pytest.importorskip("sphinx")  # the environment of the book; the library is also tested without it
import interactive_pictures  # noqa: E402
from ln_interactive import OFF, SCRIPTS, STATIC  # noqa: E402

PAGES = {
    match[1]: path.stem
    for path in CHAPTERS
    for match in re.finditer(r"^```\{interactive\} (\w+)$", path.read_text(encoding="utf-8"), re.M)
}
figures = pytest.mark.parametrize("name", PAGES)


def test_every_figure_has_a_page_and_an_alternative():
    assert set(PAGES) == set(SCRIPTS)
    for path in CHAPTERS:
        text = path.read_text(encoding="utf-8")
        for alt in re.findall(r"^```\{interactive\}.*\n:name: .*\n:alt: (.*)$", text, re.M):
            assert 40 <= len(alt) <= 350, len(alt)
        for caption in re.findall(
            r"^```\{interactive\}.*\n:name: .*\n:alt: .*\n(.*)\n```", text, re.M
        ):
            assert len(re.sub(r"\$[^$]+\$|\{.*?\}`.*?`", "x", caption).split()) <= 75, caption


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


@pytest.mark.parametrize("value", [0.1, 0.7, -1.9])  # their means round
def test_split_of_equal_numbers(scripts, value):
    page = scripts("split")
    put(page, {0: value, 2: value, 4: value})
    text = says(page)
    assert (
        "All numbers are equal" in text
        and "the part along 1 is lost; the rest is divided by s = 0.14" in text
    )
    g = state(page)[1]
    shown = numbers(" ".join(page.locator(".ln-table td").all_inner_texts()))
    up, radial, rest = lengths(g, np.zeros(3))
    np.testing.assert_allclose(
        shown, [up, 0, radial, 0, rest, rest / np.sqrt(0.02)], atol=0.005 + 1e-9
    )
    for name, disabled in (
        ("g along 1", False),
        ("g along x\u0302", True),
        ("g at right angles", True),
    ):
        assert page.get_by_role("button", name=name, exact=True).is_disabled() == disabled
    assert (
        f"dx, length {rest / np.sqrt(0.02):.2f}" in page.locator(".ln-picture svg").text_content()
    )
    click(page, "g along 1")
    assert "All of g lies along 1: nothing gets through" in says(page)
    put(page, {1: 0, 3: 0, 5: 0})
    assert "g is zero" in says(page)


def test_split_near_the_centre_lets_xhat_through(scripts):
    page = scripts("split")
    put(page, {0: 0.6, 2: 0.65, 4: 0.7})
    check_split(page)
    click(page, "g along x\u0302")
    s = np.sqrt(np.var([0.6, 0.65, 0.7]) + 0.02)
    assert (
        f"1.50 becomes {1.5 * 0.02 / s**3:.2f}, multiplied by \u03b5/s\u00b3 = {0.02 / s**3:.2f}"
        in says(page)
    )
    assert 0.02 / s**3 > 0.9 / s  # the caption: it gets through, too


@pytest.mark.parametrize(
    "name, words",
    [
        ("g along 1", "nothing gets through"),
        ("g along x\u0302", "becomes"),
        ("g at right angles", "all of it gets through"),
    ],
)
def test_split_says_what_gets_through(scripts, name, words):
    page = scripts("split")
    page.get_by_role("button", name=name).focus()
    page.keyboard.press("Enter")
    assert words in says(page)
    along_one, along_xhat, rest = numbers(" ".join(page.locator(".ln-table td").all_inner_texts()))[
        0::2
    ]
    assert [along_one > 0, along_xhat > 0, rest > 0] == [
        n in name for n in ("along 1", "along x\u0302", "right")
    ]
    click(page, "Start again")
    check_split(page)


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


def test_forward_says_where_x_and_y_are(scripts):
    page = scripts("forward")
    assert "0.70: x stands \u221a3 times that above" in says(page) and "undoes" in says(page)
    put(page, {0: -2, 2: -2, 4: -2})
    assert "\u22122.00: x stands \u221a3 times 2.00 below" in says(page)
    assert "Here y has mean 0.00" in says(page)  # the numbers of gamma differ
    put(page, {0: 0, 2: 1, 4: -1, 1: 0.5, 3: 1.5, 5: 1.5})
    assert "x lies in the plane" in says(page) and "Here y has mean 0.00" in says(page)
    put(page, {0: 0.5})
    assert "undoes the centring" in says(page)
    # A shift out of the sliders is off. Nothing leaves the picture, at any turn.
    put(page, {0: 2, 2: -2, 4: -2, 1: 2, 3: 2, 5: 2})
    for name in ("x + 0.3", "x \u2212 0.3"):
        assert page.get_by_role("button", name=name).is_disabled()
    for x in ((2, -2, -2), (2, 2, 2), (-2, -2, 2), (-2, -2, -2)):
        put(page, dict(zip((0, 2, 4), x)))
        for view in (0, 45, 90):
            put(page, {6: view})
            assert page.evaluate("""() => {
                const all = document.querySelector('.ln-picture svg').getBoundingClientRect();
                return [...document.querySelectorAll('.ln-picture g:first-child > path')].every(e => {
                    const r = e.getBoundingClientRect();
                    return r.left >= all.left && r.right <= all.right && r.top >= all.top && r.bottom <= all.bottom;
                }); }""")  # noqa: E501


# Pairs of names that touch, names that leave the picture and names that a line or a marker crosses;
# boxes without the font's room above and below letters. Lines and the heads of arrows, which are
# smaller than a name, are crossed piece by piece; markers have their box.
COLLISIONS = """() => {
    const svg = document.querySelector('.ln-picture svg'), all = svg.getBoundingClientRect(), to = svg.getScreenCTM();
    const boxes = [...svg.querySelectorAll('text')].map(e => {
        const r = e.getBoundingClientRect(), trim = 0.2 * r.height;
        return {name: e.textContent, left: r.left + 1, right: r.right - 1, top: r.top + trim, bottom: r.bottom - trim};
    });
    const found = boxes.filter(b => b.left < all.left - 1 || b.right > all.right + 1 || b.top < all.top - 1
        || b.bottom > all.bottom + 1).map(b => b.name);
    const touch = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    boxes.forEach((a, i) => boxes.slice(i + 1).forEach(b => { if (touch(a, b)) found.push(a.name + ' | ' + b.name); }));
    const meets = (b, p, q) => {  // a part of the line within the box's width, and of that within its height
        let [low, high] = [0, 1];
        for (const [v, w, from, end] of [[p.x, q.x, b.left, b.right], [p.y, q.y, b.top, b.bottom]]) {
            const ends = [from, end].map(edge => (edge - v) / (w - v || 1e-9));
            [low, high] = [Math.max(low, Math.min(...ends)), Math.min(high, Math.max(...ends))];
        }
        return low < high;
    };
    const drawn = svg.querySelector('g');
    for (const line of drawn.querySelectorAll('polyline:not([stroke=none]), polygon')) {
        const closed = line.matches('polygon') ? [line.points[0]] : [];
        const points = [...line.points, ...closed].map(p => p.matrixTransform(to));
        for (const b of boxes) if (points.some((p, i) => i && meets(b, points[i - 1], p))) found.push(b.name + ' is crossed');
    }
    for (const e of drawn.querySelectorAll('path, circle')) {
        const r = e.getBoundingClientRect();
        for (const b of boxes) if (touch(b, r)) found.push(b.name + ' is covered');
    }
    return found; }"""  # noqa: E501
# The state of each of 200 draws in which something is wrong; `always` are names that each of them
# must show.
RANDOM_STATES = """([seed, always]) => {
    let state = seed;
    const random = () => (state = (1664525 * state + 1013904223) % 2 ** 32) / 2 ** 32;
    const found = [], inputs = [...document.querySelectorAll('.ln-live input')];
    for (let k = 0; k < 200; k++) {
        const set = [];
        for (const input of inputs) {
            const [low, high] = [Number(input.min), Number(input.max)];
            input.value = low + random() * (high - low);
            input.dispatchEvent(new Event('input'));
            set.push(input.value);
        }
        const shown = [...document.querySelectorAll('.ln-picture text')].map(e => e.textContent);
        for (const name of (COLLISIONS)().concat(always.filter(name => !shown.includes(name)))) found.push([name, set.join(' ')]);
    }
    return found; }""".replace("COLLISIONS", COLLISIONS)  # noqa: E501
ALWAYS = {"forward": ["x", "c", "x\u0302", "y"], "split": ["x", "c", "x\u0302"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_names_are_crossed_by_nothing_and_stay_in_the_picture(scripts, name):
    """Over 200 random states of a figure, and where its buttons lead."""
    page = scripts(name)
    assert page.evaluate(COLLISIONS) == []
    assert page.evaluate(RANDOM_STATES, [7, ALWAYS.get(name, [])]) == []
    for button in page.locator(".ln-buttons button").all():
        if button.is_enabled():
            button.click()
            assert page.evaluate(COLLISIONS) == []


def test_dragging_beside_the_handles_turns_the_view(scripts):
    page = scripts("split")
    drawn = page.locator(".ln-picture svg").inner_html()
    box = page.locator(".ln-picture svg").bounding_box()
    drag(page, box["x"] + 15, box["y"] + box["height"] - 15, 80, -30)
    assert page.locator(".ln-picture svg").inner_html() != drawn
    # 30 pixels up: half a degree for each of the picture's units.
    tilt, turn = (
        float(page.locator("output").nth(i).inner_text().rstrip("\u00b0")) for i in (6, 7)
    )
    assert tilt == pytest.approx(38 - 15 * 380 / box["width"], abs=1)
    assert turn == pytest.approx(20 + 40 * 380 / box["width"], abs=1)
    check_split(page)


@pytest.mark.parametrize("name", ("forward", "split"))
def test_the_keyboard_turns_the_view(scripts, name):
    page = scripts(name)
    turn = page.get_by_role("slider", name="Turn")
    drawn, numbers_before = page.locator(".ln-picture svg").inner_html(), state(page)
    turn.focus()
    page.keyboard.press("ArrowRight")
    assert turn.get_attribute("aria-valuetext") == "21\u00b0"
    assert page.locator(".ln-picture svg").inner_html() != drawn
    np.testing.assert_array_equal(state(page), numbers_before)
    # A drag of 150 units to the left is 75 degrees: from 21 to below 0, so to 306, also on the
    # slider.
    box = page.locator(".ln-picture svg").bounding_box()
    far = 150 * box["width"] / 380
    drag(page, box["x"] + 15 + far, box["y"] + box["height"] - 15, -far, 0)
    assert float(turn.input_value()) == pytest.approx(306, abs=1)
    turn.focus()
    page.keyboard.press("End")
    assert turn.get_attribute("aria-valuetext") == "359\u00b0"


@pytest.mark.parametrize("motion", ("no-preference", "reduce"))
def test_a_button_moves_the_picture_and_the_last_state_stays_as_a_ghost(browser, motion):
    page = load(browser.new_page(reduced_motion=motion), "split")
    ghosts = "document.querySelectorAll('.ln-picture polyline[stroke-opacity]').length"
    assert page.evaluate(ghosts) == 0
    drawn = page.evaluate("""() => new Promise(done => {
        const layer = document.querySelector('.ln-picture g'), drawn = new Set();
        new MutationObserver(() => drawn.add(layer.innerHTML)).observe(layer, {childList: true});
        document.querySelector('.ln-buttons button').click();
        drawn.words = document.querySelector('.ln-say').textContent;
        setTimeout(() => done([drawn.size, drawn.words]), 600); })""")
    assert drawn[0] >= 3 if motion == "no-preference" else drawn[0] == 1
    assert "nothing gets through" in drawn[1]  # the words do not wait
    assert page.evaluate(ghosts) == 2  # g and dx as they were
    page.close()


@pytest.mark.slow
def test_variance_says_the_spacing_and_draws_it(scripts):
    page = scripts("variance")
    offsets = page.evaluate("LnVariance.OFFSETS")
    for k, offset in enumerate(offsets):
        put(page, {0: k})
        step = float(np.spacing(np.float32(offset**2)))
        shown = f"1/{round(1 / step):,}" if step < 1 else f"{round(step):,}"
        assert f"squares near offset\u00b2 are stored in steps of {shown}." in says(page)
        ticks = page.locator(".ln-tick").count()
        # The caption: none below 500, one above 7,000.
        assert ticks == 0 if offset < 500 else ticks == 1 if offset > 7000 else ticks > 1, offset
        if (
            offset == 1778
        ):  # the alternative: a quarter apart, from -2 on, the exact variance beside the mark
            assert step == 0.25 and ticks == 5.25 / step
    assert min(offsets) == 10 and len(set(offsets)) == len(offsets)
    start = says(scripts("variance"))
    click(page, "Other numbers")
    click(page, "Start again")
    assert says(page) == start


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


def test_step_by_keyboard(scripts):
    page = scripts("step")
    assert "bends" in says(page)
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    assert page.locator("output").inner_text() == "2\u207b\u00b2\u2074"
    assert "rounded" in says(page)
    click(page, "Predicted best step")
    # Equation 4.2 with l = 1: near (12 u)^(1/3) = 2^-6.8.
    assert page.locator("output").inner_text() in ("2\u207b\u2076", "2\u207b\u2077")
    assert "the best one can count on. Lower dots are luck" in says(page)
    central, slope = page.evaluate("[LnStep.STEPS.map(LnStep.central), LnStep.slope]")
    errors = np.abs(np.array(central) / slope - 1)
    assert errors.min() < errors[6:8].min()  # so a lower dot there is
    for k, error in enumerate(errors):
        put(page, {0: -k})
        steeper = "steeper" if central[k] > slope else "flatter"
        by = f"{100 * error:.0f}%." if error >= 0.01 else "too little to see."
        assert says(page).endswith(by) and f"The chord is {steeper} than the tangent by" in says(
            page
        )
    # The alternative describes the start, h = 1/2.
    assert central[1] > slope and "tangent at x that is less steep than the chord" in next(
        path for path in CHAPTERS if path.stem == PAGES["step"]
    ).read_text(encoding="utf-8")


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


def test_notebooks_say_that_the_figure_moves(site):
    for stem in PAGES.values():
        text = (site / f"notebooks/{stem}.ipynb").read_text(encoding="utf-8")
        assert "moves on the page of the book" in text and "data-ln-figure" not in text
