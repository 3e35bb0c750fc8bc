// An interactive figure. Runs after ln_figure.js, ln_float32.js.
// The variance of a row whose distance from zero one slides, in float32, by four formulas. Every number in the
// figure is computed here and now, by ln_float32.js.
"use strict";

LnFigure.start("variance", ({ picture, panel, label, say }) => {
  const { Drawing, button, element, number, scientific, slider } = LnFigure;
  const { OFFSETS, U, exact, row, spacing } = LnVariance;
  const METHODS = [
    ["naive", LnVariance.naive, "orange", "cross", "2 4"],
    ["Welford", LnVariance.welford, "pink", "diamond", "9 3 2 3"],
    ["two-pass", LnVariance.twoPass, "green", "square", "7 3"],
    ["recentred", LnVariance.recentred, "blue", "dot", "none"],
  ];
  const START = { k: 18, seed: 1 }, state = { ...START };
  const drawing = new Drawing(picture, 400, 438, label);
  const plain = v => v === 0 || (v >= 1e-3 && v < 1e6);
  const short = v => (plain(v) ? String(Number(v.toPrecision(2))) : scientific(v));
  const shownOffset = k => OFFSETS[k].toLocaleString("en");
  const showOffset = slider(panel, "Offset", { min: 0, max: OFFSETS.length - 1, step: 1, words: shownOffset },
    k => { state.k = k; render(); });
  const buttons = element("div", { class: "ln-buttons" }, panel);
  button(buttons, "Next negative variance", () => {
    for (let i = 1; i <= OFFSETS.length; i++) {
      const k = (state.k + i) % OFFSETS.length;
      if (LnVariance.naive(row(OFFSETS[k], state.seed)) < 0) { state.k = k; break; }
    }
    render();
  });
  button(buttons, "Other numbers", () => { state.seed += 1; render(); });
  button(buttons, "Start again", () => { Object.assign(state, START); render(); });

  const table = element("table", { class: "ln-table" }, panel);
  element("caption", {}, table).textContent = "Variance of the row in float32";
  const head = element("tr", {}, element("thead", {}, table));
  for (const name of ["formula", "variance", "error"]) element("th", { scope: "col" }, head).textContent = name;
  const cells = ["exact", ...METHODS.map(([name]) => name)].map((name, i) => {
    const tr = element("tr", {}, table), th = element("th", { scope: "row" }, tr);
    if (i) LnFigure.key(th, METHODS[i - 1][3], METHODS[i - 1][2]);
    th.append(name);
    return [element("td", {}, tr), element("td", {}, tr)];
  });

  // Above: where on the line of numbers each result lies. Below: the error over all offsets.
  const LOW = -2.2, HIGH = 3.2;
  const place = v => 100 + 280 * (Math.max(LOW, Math.min(HIGH, v)) - LOW) / (HIGH - LOW);
  const across = offset => 46 + 340 * (Math.log10(offset) - 1) / 6;
  const down = error => 392 - 12 * (Math.log10(Math.max(1e-9, Math.min(1e7, error))) + 9);

  function line(results, truth, step) {
    drawing.add("rect", { x: place(LOW), y: 8, width: place(0) - place(LOW), height: 124,
      fill: LnFigure.COLOURS.orange, "fill-opacity": 0.15 });
    drawing.text([place(LOW / 2), 15], "negative", "ln-small ln-centred");
    for (const v of [-2, -1, 0, 1, 2, 3]) {
      drawing.line([[place(v), 132], [place(v), 137]], "currentColor", { width: 1 });
      drawing.text([place(v), 148], number(v, 0), "ln-small ln-centred");
    }
    drawing.line([[place(LOW), 132], [place(HIGH), 132]], "currentColor", { width: 1 });
    drawing.line([[place(truth), 12], [place(truth), 132]], "currentColor", { width: 1.5 });
    // What naive can return: multiples of the spacing of floats near the square of the mean.
    for (let v = Math.ceil(LOW / step) * step; step > 0.02 && v <= HIGH; v += step)
      drawing.line([[place(v), 40], [place(v), 50]], "orange", { width: 1, class: "ln-tick" });
    METHODS.forEach(([name, , colour, mark], i) => {
      const y = 40 + 26 * i, v = results[i], x = place(v);
      drawing.text([84, y + 4], name, "ln-small ln-end");
      drawing.line([[place(LOW), y], [place(HIGH), y]], "grey", { width: 0.5 });
      drawing.marker(mark, [x, y], colour);
      if (v > HIGH) drawing.text([x - 10, y + 4], `${number(v, 0)} →`, "ln-small ln-end");
      if (v < LOW) drawing.text([x + 10, y + 4], `← ${number(v, 0)}`, "ln-small");
    });
  }

  function map(results, errors) {
    for (const [error, name] of [[1e4, "10⁴"], [1, "1"], [1e-4, "10⁻⁴"], [1e-8, "10⁻⁸"]]) {
      drawing.line([[46, down(error)], [386, down(error)]], "grey", { width: 0.5 });
      drawing.text([36, down(error) + 4], name, "ln-small ln-end");
    }
    // Predicted for naive: u times the square of offset / sigma, which reaches 1 at the limit.
    const limit = 1 / Math.sqrt(U);
    drawing.line([[across(10), down(U * 100)], [across(1e7), down(U * 1e14)]], "currentColor", { width: 1.2 });
    drawing.line([[across(limit), down(1)], [across(limit), 396]], "currentColor", { width: 1, dash: "3 3" });
    for (const [offset, name] of [[10, "10"], [100, "100"], [limit, "1/√u"], [1e6, "10⁶"]])
      drawing.text([across(offset), 408], name, "ln-small ln-centred");
    drawing.text([216, 428], "offset / {σ}", "ln-small ln-centred");
    drawing.text([46, 176], "relative error", "ln-small");
    drawing.text([386, 176], "marks: naive is negative", "ln-small ln-end");
    drawing.text([52, 212], "line: {u} (offset/{σ})²", "ln-small");
    METHODS.forEach(([, method, colour, , dash]) => {
      const points = OFFSETS.map(offset => {
        const x = row(offset, state.seed), v = exact(x), found = method(x);
        if (found < 0) drawing.line([[across(offset), 184], [across(offset), 192]], colour);
        return [across(offset), down(Math.abs(found - v) / v)];
      });
      drawing.line(points, colour, { width: 1.6, dash: dash });
    });
    const x = across(OFFSETS[state.k]);
    drawing.line([[x, down(Math.max(...errors))], [x, 396]], "grey", { width: 6, "stroke-opacity": 0.35 });
    METHODS.forEach(([, , colour, mark], i) => drawing.marker(mark, [x, down(errors[i])], colour));
  }

  function render() {
    const offset = OFFSETS[state.k], x = row(offset, state.seed), truth = exact(x);
    const results = METHODS.map(([, method]) => method(x)), errors = results.map(v => Math.abs(v - truth) / truth);
    const step = spacing(offset), whole = v => v.toLocaleString("en");
    drawing.clear();
    line(results, truth, step);
    map(results, errors);
    showOffset(state.k);
    cells.forEach(([a, b], i) => {
      const v = i ? results[i - 1] : truth;
      a.textContent = number(v, Math.abs(v) < 1000 ? 4 : 0);
      b.textContent = i ? short(errors[i - 1]) : "";
    });
    const verdict = results[0] < 0 ? "is negative, and its root is NaN"
      : results[0] === 0 ? "is zero: no digit is left" : `has error ${short(errors[0])}`;
    say(`Offset ${shownOffset(state.k)}: squares near offset\u00b2 are stored in steps of `
      + `${step < 1 ? `1/${whole(1 / step)}` : whole(step)}. `
      + `The naive variance ${verdict}.`);
  }
  return render;
});
