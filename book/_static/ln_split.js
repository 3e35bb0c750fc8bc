// An interactive figure. Runs after ln_figure.js, ln_space.js.
// A row x of three numbers and its upstream gradient g: which part of g layer norm's backward lets through.
"use strict";

LnFigure.start("split", ({ picture, panel, label, say }) => {
  const { Drawing, button, element, mover, number, slider, viewSliders, write } = LnFigure;
  const { UP, View, dot, drag, length, normalise, sum, times, unit } = LnSpace;
  const EPS = 0.02, LIMIT = 2;
  const START = { x: [1.25, 1.6, 0.15], g: [0.65, 2, -0.2], elevation: 38, turn: 20 };
  const state = structuredClone(START), view = new View([190, 195]);
  let ghost = null;  // the state before the last change
  const remember = () => { ghost = structuredClone(state); };
  const drawing = new Drawing(picture, 380, 390, label);

  const moveX = drawing.handle(place => {
    state.x = drag(state.x, view.under(place, state.x), LIMIT);
    render("drag");
  }, remember);
  const moveG = drawing.handle(place => {
    const { xhat } = normalise(state.x, EPS), tip = view.under(place, sum(xhat, state.g));
    state.g = drag(state.g, sum(tip, times(xhat, -1)), LIMIT);
    render("drag");
  }, remember);
  drawing.onTurn(state, remember, () => render("drag"));

  const sliders = element("div", { class: "ln-sliders" }, panel), show = { x: [], g: [] };
  const range = { min: -LIMIT, max: LIMIT, step: 0.05, words: number };
  for (const i of [0, 1, 2])
    for (const name of ["x", "g"])
      show[name].push(slider(sliders, `{${name}}${"₁₂₃"[i]}`, range, value => {
        state[name][i] = value;
        render();
      }, remember));
  const showView = viewSliders(panel, state, () => render(), remember);

  const set = g => () => { remember(); state.g = g(normalise(state.x, EPS)); render("smooth"); };
  const buttons = element("div", { class: "ln-buttons ln-story" }, panel);
  button(buttons, "{g} along [1]", set(() => [1, 1, 1]));
  const needXhat = [
    button(buttons, "{g} along {x\u0302}", set(({ xhat }) => times(unit(xhat), 1.5))),
    button(buttons, "{g} at right angles", set(({ xhat: [a, b, c] }) => times(unit([b - c, c - a, a - b]), 1.5))),
  ];
  button(buttons, "small {x}", () => { remember(); state.x = [0.6, 0.65, 0.7]; render("smooth"); });
  button(buttons, "Start again", () => { Object.assign(state, structuredClone(START)); ghost = null; render("smooth"); });

  const table = element("table", { class: "ln-table" }, panel);
  write(element("caption", {}, table), "Lengths");
  const head = element("tr", {}, element("thead", {}, table));
  for (const name of ["part of {g}", "in {g}", "in {dx}"]) write(element("th", { scope: "col" }, head), name);
  const cells = ["along [1]", "along {x\u0302}", "the rest"].map((name, i) => {
    const row = element("tr", {}, table);
    const th = element("th", { scope: "row" }, row);
    LnFigure.key(th, ...[["dashed", "orange"], ["dashed", "pink"], ["solid", "green"]][i]);
    write(element("span", {}, th), name);
    return [element("td", {}, row), element("td", {}, row)];
  });

  // The lengths of v along 1, along xhat, and of what remains.
  function parts(v, xhat) {
    const up = dot(v, UP), radial = unit(xhat), out = dot(v, radial);
    const rest = sum(sum(v, times(UP, -up)), times(radial, -out));
    return { up, out, rest, lengths: [Math.abs(up), Math.abs(out), length(rest)] };
  }

  // How far an arrow gets before the edge of the picture.
  function reach(start, tip) {
    const along = tip.map((v, i) => v - start[i]), size = Math.hypot(...along);
    const far = [drawing.width - 6, drawing.height - 6];
    const part = Math.min(1, ...along.map((v, i) => ((v > 0 ? far[i] : 6) - start[i]) / (v || -1e-9)));
    const end = start.map((v, i) => v + part * along[i]), direction = along.map(v => v / (size || 1));
    return { end, direction, size, cut: part < 1 };
  }

  function backward({ x, g }) {
    const row = normalise(x, EPS), flat = sum(g, times(UP, -dot(g, UP)));
    return { ...row, flat, dx: times(sum(flat, times(row.xhat, -dot(g, row.xhat) / 3)), 1 / row.s) };
  }

  const draw = shown => {
    const { x, g } = shown, { c, s, xhat, flat, dx } = backward(shown), before = parts(g, xhat);
    Object.assign(view, { elevation: shown.elevation, turn: shown.turn, scale: shown.scale });
    drawing.clear();
    view.ground(drawing, 2.4);
    drawing.line(view.circle(Math.sqrt(3)), "currentColor", { width: 1.2 });
    const at = p => view.at(p), from = at(xhat);
    const tip = sum(xhat, g), foot = sum(xhat, flat), left = sum(xhat, before.rest);
    if (ghost) {
      const old = backward(ghost), start = at(old.xhat), faint = { width: 2, "stroke-opacity": 0.45 };
      for (const way of [ghost.g, old.dx]) drawing.line([start, reach(start, at(sum(old.xhat, way))).end], "grey", faint);
    }
    drawing.line([at(x), at(c)], "grey", { width: 1.5, dash: "4 3" });
    drawing.line([view.centre, at(c)], "grey", { width: 1 });
    drawing.line([from, at(foot)], "grey", { width: 1 });
    // g below, the parts of it on top: where they lie along each other, both are seen.
    const seen = reach(from, at(tip));
    drawing.arrow(from, seen.end, "currentColor");
    drawing.line([at(tip), at(foot)], "orange", { dash: "7 4", width: 2.5 });
    drawing.line([at(foot), at(left)], "pink", { dash: "7 4", width: 2.5 });
    drawing.line([from, at(left)], "green", { width: 1.5 });
    const arrow = reach(from, at(sum(xhat, dx)));
    drawing.arrow(from, arrow.end, "green", { width: 4.5 });
    drawing.marker("triangle", at(x), "orange");
    drawing.marker("dot", at(c), "blue");
    drawing.marker("square", from, "green");
    drawing.label(at(x), "{x}", { toward: [1, -0.6] });
    drawing.label(from, "{x\u0302}", { toward: [-0.6, 1] });
    drawing.label(at(c), "{c}", { toward: [-1, 0] });
    // The name of g stands beyond its tip; that of dx beside its tip, on the side away from g.
    const g1 = seen.direction, d1 = arrow.direction, side = d1[0] * g1[1] - d1[1] * g1[0] < -1e-9 ? -1 : 1;
    if (seen.size > 4) drawing.label(seen.end, "{g}", { toward: g1 });
    if (arrow.size > 4) drawing.label(arrow.end, arrow.cut ? `{dx}, length ${number(length(dx))}` : "{dx}",
      { toward: [side * d1[1], -side * d1[0]] });
    const half = (a, b) => at(a).map((v, i) => (v + at(b)[i]) / 2), far = (a, b) => Math.hypot(at(a)[0] - at(b)[0], at(a)[1] - at(b)[1]);
    if (far(tip, foot) > 25) drawing.label(half(tip, foot), "along [1]: lost", { toward: [1, 0], small: true, colour: "orange" });
    const factor = EPS / s ** 3, kept = factor < 0.1 ? "nearly lost" : `times ${number(factor)}`;
    if (far(foot, left) > 25)
      drawing.label(half(foot, left), `along {x\u0302}: ${kept}`, { toward: [1, 1], small: true, colour: "pink" });
    drawing.placeLabels();
    moveX(at(x));
    moveG(seen.end);
  };
  const move = mover(draw);

  function render(how) {
    const { x, g } = state, { mu, variance, s, xhat, dx } = backward(state), before = parts(g, xhat), after = parts(dx, xhat);
    Object.assign(view, { elevation: state.elevation, turn: state.turn });
    // What a finger holds must not slip: a drag makes the picture smaller only where a row would leave it.
    view.fit(how === "drag" ? [x] : [x, xhat, sum(xhat, g), sum(xhat, dx)], 40, how === "drag" ? state.scale : 70);
    state.scale = view.scale;
    move(state, how === "smooth");
    for (const made of needXhat) made.disabled = length(xhat) < 1e-9;

    for (const name of ["x", "g"]) show[name].forEach((shown, i) => shown(state[name][i]));
    showView();
    cells.forEach((pair, i) => [before, after].forEach((v, j) => { pair[j].textContent = number(v.lengths[i]); }));
    const row = `Row: mean ${number(mu)}, {\u03c3} = ${number(Math.sqrt(variance))}, {s} = ${number(s)}. `;
    const [up, out, rest] = before.lengths, [, kept] = after.lengths;
    if (length(g) < 1e-9) say(row + "{g} is zero, and so is {dx}.");
    else if (out + rest < 1e-6) say(row + "All of {g} lies along [1]: nothing gets through, {dx} = 0.");
    else if (length(xhat) < 1e-9) say(row + "All numbers are equal: {x\u0302} is zero. Of {g}, the part along [1] "
      + `is lost; the rest is divided by {s} = ${number(s)}.`);
    else if (up + rest < 1e-6) say(row + `All of {g} lies along {x\u0302}: ${number(out)} becomes ${number(kept)}, `
      + `multiplied by {\u03b5}/{s}\u00b3 = ${number(EPS / s ** 3)}.`);
    else if (up + out < 1e-6) say(row + `{g} is at right angles to both: all of it gets through, divided by {s}.`);
    else say(row + `Of {g}, the part along [1] is multiplied by 0, the part along {x\u0302} by {\u03b5}/{s}\u00b3 = `
      + `${number(EPS / s ** 3)}, the rest by 1/{s} = ${number(1 / s)}.`);
  }
  return render;
});
