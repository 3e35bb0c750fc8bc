// An interactive figure. Runs after ln_figure.js.
// The central difference of one function in float32, whose step one slides: what it is taken from, and its error.
"use strict";

// phi(x) = x / sqrt(x^2 + 1) is layer norm of the row (x, -x) with eps = 1: every operation rounds once.
const LnStep = (() => {
  const f = Math.fround, X = f(0.7);
  const phi = x => f(x / f(Math.sqrt(f(f(x * x) + 1))));
  const slope = (X * X + 1) ** -1.5, third = (12 * X * X - 3) * (X * X + 1) ** -3.5;  // derivatives, in float64
  const central = h => f(f(phi(f(X + h)) - phi(f(X - h))) / f(2 * h));
  const STEPS = Array.from({ length: 25 }, (_, k) => 2 ** -k);  // X has no bit below the last one
  return { STEPS, U: 2 ** -24, X, central, phi, slope, third };
})();

LnFigure.start("step", ({ picture, panel, label, say }) => {
  const { Drawing, button, element, number, power, scientific, slider, write } = LnFigure;
  const { STEPS, U, X, central, phi, slope, third } = LnStep;
  const state = { k: 1 };
  const drawing = new Drawing(picture, 400, 438, label);
  const error = h => Math.abs(central(h) / slope - 1);
  const truncation = h => h * h / 6 * Math.abs(third / slope), rounding = h => 4 * U * Math.abs(phi(X) / slope) / h;

  const two = k => (k ? power(2, -k) : "1");
  const showStep = slider(panel, "Step {h}", { min: 1 - STEPS.length, max: 0, step: 1, words: v => two(-v) },
    v => { state.k = -v; render(); });
  const buttons = element("div", { class: "ln-buttons" }, panel);
  button(buttons, "Predicted best step", () => {
    const predicted = STEPS.map(h => truncation(h) + rounding(h));
    state.k = predicted.indexOf(Math.min(...predicted));
    render();
  });
  button(buttons, "Start again", () => { state.k = 1; render(); });
  const table = element("table", { class: "ln-table" }, panel);
  element("caption", {}, table).textContent = "The slope, and its error";
  const rows = [["chord", "solid", "blue"], ["tangent", "dashed", "currentColor"], ["error", "square", "blue"],
    ["{φ}({x})", "dot", "orange"]];
  const cells = rows.map(([name, dash, colour]) => {
    const row = element("tr", {}, table), th = element("th", { scope: "row" }, row);
    LnFigure.key(th, dash, colour);
    write(element("span", {}, th), name);
    return element("td", {}, row);
  });

  // Above: two steps to either side, drawn so that the tangent rises by the same amount for every h.
  function zoom(h) {
    const at = (x, y) => [215 + 75 * (x - X) / h, 100 - 36 * (y - phi(X)) / (h * slope)];
    const inside = p => p[1] > 4 && p[1] < 190;
    for (let i = -48; i <= 48; i++) {
      const x = Math.fround(X + i * h / 24), p = at(x, phi(x));
      if (inside(p)) drawing.add("circle", { cx: p[0], cy: p[1], r: 1.8, fill: LnFigure.COLOURS.orange });
    }
    drawing.line([at(X - 2 * h, phi(X) - 2 * h * slope), at(X + 2 * h, phi(X) + 2 * h * slope)], "currentColor",
      { width: 1.5, dash: "6 4" });
    // The tangent's direction again from the chord's left end: what is between them at the right is the error.
    const left = [X - h, phi(Math.fround(X - h))];
    drawing.line([at(...left), at(X + h, left[1] + 2 * h * slope)], "currentColor", { width: 1.5, dash: "2 3" });
    const ends = [X - h, X + h].map(x => at(x, phi(Math.fround(x))));
    drawing.line(ends, "blue", { width: 2.5 });
    ends.forEach((p, i) => {
      drawing.marker("square", p, "blue");
      drawing.line([[p[0], 188], [p[0], 194]], "currentColor", { width: 1 });
      drawing.text([p[0], 206], i ? "{x} + {h}" : "{x} \u2212 {h}", "ln-small ln-centred");
    });
    drawing.text([215, 206], "{x}", "ln-small ln-centred");
    drawing.line([[60, 191], [300, 191]], "currentColor", { width: 1 });
    return enlarge(left[1] + 2 * h * slope, phi(Math.fround(X + h)), 36 / (h * slope));
  }

  // The gap at the right end again, or the space between two floats there if that is larger, 45 high; ticks are floats.
  function enlarge(tangent, chord, scale) {
    const factor = Number((45 / scale / Math.max(U, Math.abs(chord - tangent))).toPrecision(1)), times = scale * factor;
    const at = value => 134 - times * (value - (chord + tangent) / 2);
    drawing.line([[345, 84], [345, 184]], "grey", { width: 0.5 });
    for (let n = -20; n <= 20; n++) {
      const y = at(chord + n * U);  // all are between 1/2 and 1
      if (times * U > 3 && y > 82 && y < 186) drawing.line([[339, y], [351, y]], "orange", { width: 1.5 });
    }
    drawing.line([[335, at(tangent)], [390, at(tangent)]], "currentColor", { width: 1.5, dash: "2 3" });
    drawing.line([[345, at(chord)], [390, at(chord)]], "blue", { width: 2.5 });
    drawing.marker("square", [345, at(chord)], "blue");
    drawing.text([353, 206], "the gap", "ln-small ln-centred");
    return factor;
  }

  const across = h => 386 + 340 * Math.log2(h) / 24;
  const down = e => 396 - 20 * (Math.log10(Math.max(1e-8, Math.min(10, e))) + 8);

  function map(h) {
    for (const [e, name] of [[1, "1"], [1e-4, "10⁻⁴"], [1e-8, "10⁻⁸"]]) {
      drawing.line([[46, down(e)], [386, down(e)]], "grey", { width: 0.5 });
      drawing.text([36, down(e) + 4], name, "ln-small ln-end");
    }
    for (const [k, name] of [[0, "1"], [8, "2⁻⁸"], [16, "2⁻¹⁶"], [24, "2⁻²⁴"]])
      drawing.text([across(2 ** -k), 410], name, "ln-small ln-centred");
    drawing.text([216, 428], "step {h}", "ln-small ln-centred");
    drawing.text([46, 229], "relative error", "ln-small");
    for (const line of [truncation, rounding]) {
      const shown = STEPS.filter(s => line(s) > 1e-8 && line(s) < 1.5);
      drawing.line(shown.map(s => [across(s), down(line(s))]), "currentColor", { width: 1.2 });
    }
    // Each name above the upper end of its line, where no error gets.
    drawing.text([across(2 ** -18), down(0.15)], "rounding", "ln-small");
    drawing.text([across(2 ** -2.4), down(0.04)], "truncation", "ln-small ln-end");
    drawing.line(STEPS.map(s => [across(s), down(error(s))]), "blue", { width: 1.2, dash: "3 3" });
    drawing.line([[across(h), down(error(h))], [across(h), 400]], "grey", { width: 6, "stroke-opacity": 0.35 });
    const fill = LnFigure.COLOURS.blue;
    STEPS.forEach(s => drawing.add("circle", { cx: across(s), cy: down(error(s)), r: 2.5, fill }));
    drawing.marker("square", [across(h), down(error(h))], "blue");
  }

  function render() {
    const h = STEPS[state.k], [large, small] = [truncation(h), rounding(h)];
    drawing.clear();
    const factor = zoom(h);
    map(h);
    showStep(-state.k);
    cells[0].textContent = number(central(h), 6);
    cells[1].textContent = number(slope, 6);
    cells[3].textContent = number(phi(X), 6);
    const found = error(h), shown = scientific(found);
    cells[2].textContent = shown;
    const verdict = large > 10 * small ? "the function bends between the two ends."
      : small > 10 * large ? "the two values are rounded, and the division by 2{h} enlarges that."
        : "the two lines cross about here: the best one can count on. Lower dots are luck.";
    const by = found < 0.01 ? shown : `${number(100 * found, 0)}\u00a0%`;
    say(`{h} = ${two(state.k)}: ${verdict} The chord is ${central(h) > slope ? "steeper" : "flatter"} `
      + `than the tangent by ${by}. At the right the gap is drawn ${factor < 100 ? factor : scientific(factor)} times as high.`);
  }
  return render;
});
