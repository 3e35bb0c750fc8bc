// An interactive figure. Runs after ln_figure.js, ln_space.js.
// The three moves of the forward pass on a row x of three numbers: centre, scale, stretch.
"use strict";

LnFigure.start("forward", ({ picture, panel, label, say }) => {
  const { Drawing, button, element, number, slider, write } = LnFigure;
  const { View, drag, length, mean, normalise, times } = LnSpace;
  const EPS = 0.01, LIMIT = 2;
  const START = { x: [0.3, 1.4, 0.4], gamma: [0.7, 1.7, 0.9], elevation: 35 };
  const state = structuredClone(START);
  const view = new View([190, 195], 54);  // at any turn, x and y are at most 2 sqrt(3) from the centre
  const drawing = new Drawing(picture, 380, 390, label);

  const moveX = drawing.handle(place => {
    state.x = drag(state.x, view.under(place, state.x), LIMIT);
    render();
  });

  const sliders = element("div", { class: "ln-sliders" }, panel), show = { x: [], gamma: [] };
  const SLIDERS = { x: ["x", { min: -LIMIT, max: LIMIT }], gamma: ["γ", { min: 0, max: 2 }] };
  for (const i of [0, 1, 2])
    for (const [name, [sign, range]] of Object.entries(SLIDERS))
      show[name].push(slider(sliders, `{${sign}}${"₁₂₃"[i]}`, { ...range, step: 0.05, words: number },
        value => { state[name][i] = value; render(); }));
  const showView = slider(panel, "View, side to above", { min: 0, max: 90, step: 1, words: v => `${v}\u00b0` },
    value => { state.elevation = value; render(); });

  const set = (name, change) => () => { state[name] = change(state[name]); render(); };
  const buttons = element("div", { class: "ln-buttons" }, panel);
  // A shift that would push a number out of its slider is off, so that it never bends the row.
  const shifts = [["{x} + 0.3", 0.3], ["{x} \u2212 0.3", -0.3]].map(([name, by]) => {
    const shift = x => x.map(v => Number((v + by).toFixed(9)));
    return [button(buttons, name, set("x", x => shift(x))), shift];
  });
  button(buttons, "{x} / 2", set("x", x => times(x, 1 / 2)));
  button(buttons, "{\u03b3} = 1", set("gamma", () => [1, 1, 1]));
  button(buttons, "Start again", () => { Object.assign(state, structuredClone(START)); render(); });

  const table = element("table", { class: "ln-table" }, panel);
  write(element("caption", {}, table), "Numbers");
  const head = element("tr", {}, element("thead", {}, table));
  for (const name of ["feature", "1", "2", "3"]) element("th", { scope: "col" }, head).textContent = name;
  const MARKS = { c: ["dot", "blue"], "x\u0302": ["square", "green"], y: ["diamond", "pink"] };
  const cells = Object.entries(MARKS).map(([name, [mark, colour]]) => {
    const row = element("tr", {}, table), th = element("th", { scope: "row" }, row);
    LnFigure.key(th, mark, colour);
    write(element("span", {}, th), `{${name}}`);
    return [0, 1, 2].map(() => element("td", {}, row));
  });

  function render() {
    const { x, gamma } = state, { mu, c, variance, s, xhat } = normalise(x, EPS);
    const stretch = p => p.map((v, i) => gamma[i] * v), y = stretch(xhat);
    view.elevation = state.elevation;
    drawing.clear();
    view.ground(drawing, 2.6);
    const at = p => view.at(p), radius = Math.sqrt(3);
    drawing.line(view.circle(radius), "currentColor", { width: 1.2 });
    drawing.line(view.circle(radius, stretch), "pink", { dash: "7 3" });
    drawing.arrow(at(x), at(c), "orange", { dash: "5 3" });
    drawing.line([view.centre, at(c)], "grey", { width: 1 });
    drawing.arrow(at(c), at(xhat), "blue");
    drawing.arrow(at(xhat), at(y), "green");
    drawing.marker("triangle", at(x), "orange");
    [c, xhat, y].forEach((p, i) => drawing.marker(Object.values(MARKS)[i][0], at(p), Object.values(MARKS)[i][1]));
    const beside = (p, dx, dy, string) =>
      drawing.text(drawing.inside([at(p)[0] + dx, at(p)[1] + dy]), string, "ln-centred");
    beside(x, -14, -8, "{x}");
    beside(c, -10, 16, "{c}");
    beside(xhat, 8, 18, "{x\u0302}");
    beside(y, 14, -10, "{y}");
    moveX(at(x));

    for (const name of ["x", "gamma"]) show[name].forEach((shown, i) => shown(state[name][i]));
    showView(state.elevation);
    [c, xhat, y].forEach((p, i) => cells[i].forEach((td, j) => { td.textContent = number(p[j]); }));
    for (const [made, shift] of shifts) made.disabled = shift(x).some(v => Math.abs(v) > LIMIT);
    const left = mean(y), equal = gamma.every(v => v === gamma[0]);
    const stands = Math.abs(mu) < 1e-9 ? "lies in the plane"
      : `stands \u221a3 times ${mu > 0 ? "that above" : `${number(-mu)} below`} the plane`;
    const centring = equal ? "{y} has mean 0: {\u03b3}, the same for all, keeps the centring."
      : Math.abs(left) < 5e-3 ? `Here {y} has mean ${number(left)}.`
        : `{y} has mean ${number(left)}: {\u03b3} undoes the centring.`;
    say(`Mean ${number(mu)}: {x} ${stands}. `
      + `{\u03c3} = ${number(Math.sqrt(variance))}, {s} = ${number(s)}: {x\u0302} has length `
      + `${number(length(xhat))}, the circle ${number(radius)}. `
      + centring);
  }
  return render;
});
