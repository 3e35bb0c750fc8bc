// An interactive figure. Runs after ln_figure.js, ln_space.js.
// The three moves of the forward pass on a row x of three numbers: centre, scale, stretch.
"use strict";

LnFigure.start("forward", ({ picture, panel, label, say }) => {
  const { Drawing, button, element, mover, number, slider, viewSliders, write } = LnFigure;
  const { View, drag, length, mean, normalise, times } = LnSpace;
  const EPS = 0.01, LIMIT = 2;
  const START = { x: [0.3, 1.4, 0.4], gamma: [0.7, 1.7, 0.9], elevation: 35, turn: 20 };
  const state = structuredClone(START), view = new View([190, 195]);
  let ghost = null;  // the state before the last change
  const remember = () => { ghost = structuredClone(state); };
  const drawing = new Drawing(picture, 380, 390, label);

  const moveX = drawing.handle(place => {
    state.x = drag(state.x, view.under(place, state.x), LIMIT);
    render("drag");
  }, remember);
  drawing.onTurn(state, remember, () => render("drag"));

  const sliders = element("div", { class: "ln-sliders" }, panel), show = { x: [], gamma: [] };
  const SLIDERS = { x: ["x", { min: -LIMIT, max: LIMIT }], gamma: ["γ", { min: 0, max: 2 }] };
  for (const i of [0, 1, 2])
    for (const [name, [sign, range]] of Object.entries(SLIDERS))
      show[name].push(slider(sliders, `{${sign}}${"₁₂₃"[i]}`, { ...range, step: 0.05, words: number },
        value => { state[name][i] = value; render(); }, remember));
  const showView = viewSliders(panel, state, () => render(), remember);

  const set = (name, change) => () => { remember(); state[name] = change(state[name]); render("smooth"); };
  const buttons = element("div", { class: "ln-buttons ln-story" }, panel);
  // A shift that would push a number out of its slider is off, so that it never bends the row.
  const shifts = [["{x} + 0.3", 0.3], ["{x} \u2212 0.3", -0.3]].map(([name, by]) => {
    const shift = x => x.map(v => Number((v + by).toFixed(9)));
    return [button(buttons, name, set("x", x => shift(x))), shift];
  });
  button(buttons, "{x} / 2", set("x", x => times(x, 1 / 2)));
  button(buttons, "{\u03b3} = 1", set("gamma", () => [1, 1, 1]));
  button(buttons, "Start again", () => { Object.assign(state, structuredClone(START)); ghost = null; render("smooth"); });

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

  // Where a row, its moves and its ellipse lie, and at what size they all fit.
  const points = ({ x, gamma }) => {
    const { c, xhat } = normalise(x, EPS);
    return { x, c, xhat, y: xhat.map((v, i) => gamma[i] * v) };
  };
  const radius = Math.sqrt(3), angles = Array.from({ length: 24 }, (_, i) => i * Math.PI / 12);
  const spread = ({ x, gamma }) => [...Object.values(points({ x, gamma })), ...angles.map(angle => LnSpace.around(angle)
    .map((v, i) => radius * Math.max(1, gamma[i]) * v))];

  const draw = shown => {
    const { gamma } = shown, { x, c, xhat, y } = points(shown), stretch = p => p.map((v, i) => gamma[i] * v);
    Object.assign(view, { elevation: shown.elevation, turn: shown.turn, scale: shown.scale });
    drawing.clear();
    view.ground(drawing, 2.6);
    const at = p => view.at(p);
    if (ghost) {
      const old = points(ghost), faint = { width: 2, "stroke-opacity": 0.45 };
      drawing.line([old.x, old.c, old.xhat, old.y].map(at), "grey", faint);
    }
    drawing.line(view.circle(radius), "currentColor", { width: 1.2 });
    drawing.line(view.circle(radius, stretch), "pink", { dash: "7 3" });
    drawing.arrow(at(x), at(c), "orange", { dash: "5 3" });
    drawing.line([view.centre, at(c)], "grey", { width: 1 });
    drawing.arrow(at(c), at(xhat), "blue");
    drawing.arrow(at(xhat), at(y), "green");
    drawing.marker("triangle", at(x), "orange");
    [c, xhat, y].forEach((p, i) => drawing.marker(Object.values(MARKS)[i][0], at(p), Object.values(MARKS)[i][1]));
    drawing.label(at(x), "{x}", { toward: [-1, -0.6] });
    drawing.label(at(y), "{y}", { toward: [1, -0.7] });
    drawing.label(at(xhat), "{x\u0302}", { toward: [0.4, 1] });
    drawing.label(at(c), "{c}", { toward: [-0.6, 1] });
    const half = (a, b) => at(a).map((v, i) => (v + at(b)[i]) / 2);
    for (const [a, b, name, colour] of [[x, c, "centre", "orange"], [c, xhat, "scale", "blue"], [xhat, y, "stretch", "green"]])
      if (Math.hypot(at(a)[0] - at(b)[0], at(a)[1] - at(b)[1]) > 34)
        drawing.label(half(a, b), name, { toward: [1, 0.3], small: true, colour });
    drawing.placeLabels();
    moveX(at(x));
  };
  const move = mover(draw);

  function render(how) {
    const { x, gamma } = state, { mu, variance, s } = normalise(x, EPS), { c, xhat, y } = points(state);
    Object.assign(view, { elevation: state.elevation, turn: state.turn });
    // What a finger holds must not slip: a drag makes the picture smaller only where a row would leave it.
    view.fit(how === "drag" ? [x, y] : spread(state), 50, how === "drag" ? state.scale : 76);
    state.scale = view.scale;
    move(state, how === "smooth");
    for (const name of ["x", "gamma"]) show[name].forEach((shown, i) => shown(state[name][i]));
    showView();
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
