// A row x of three numbers and its upstream gradient g: which part of g layer norm's backward lets through.
"use strict";

LnFigure.start("split", ({ picture, panel, label, say }) => {
  const { Drawing, button, element, number, slider, write } = LnFigure;
  const { UP, View, dot, length, normalise, sum, times, unit } = LnSpace;
  const EPS = 0.02, LIMIT = 2.5, WIDTH = 380, HEIGHT = 355;
  const START = { x: [0.3, 1.75, 0.95], g: [0.8, 1.9, -0.3], elevation: 38 };
  const state = structuredClone(START);
  const view = new View([165, 205], 60);
  const drawing = new Drawing(picture, WIDTH, HEIGHT, label);

  const round = v => Math.max(-LIMIT, Math.min(LIMIT, Math.round(v * 20) / 20));
  const moveX = drawing.handle(place => { state.x = view.under(place, state.x).map(round); render(); });
  const moveG = drawing.handle(place => {
    const { xhat } = normalise(state.x, EPS), tip = view.under(place, sum(xhat, state.g));
    state.g = sum(tip, times(xhat, -1)).map(round);
    render();
  });

  const sliders = element("div", { class: "ln-sliders" }, panel), show = { x: [], g: [] };
  const range = { min: -LIMIT, max: LIMIT, step: 0.05, words: number };
  for (const i of [0, 1, 2])
    for (const name of ["x", "g"])
      show[name].push(slider(sliders, `{${name}}${"₁₂₃"[i]}`, range, value => {
        state[name][i] = value;
        render();
      }));
  const showView = slider(panel, "View", { min: 0, max: 90, step: 1, words: v => `${v}\u00b0` },
    value => { state.elevation = value; render(); });

  const set = g => () => { state.g = g(normalise(state.x, EPS)); render(); };
  const buttons = element("div", { class: "ln-buttons" }, panel);
  button(buttons, "{g} along [1]", set(() => [1, 1, 1]));
  button(buttons, "{g} along {x\u0302}", set(({ xhat }) => times(unit(xhat), 2)));
  button(buttons, "{g} at right angles", set(({ xhat: [a, b, c] }) => times(unit([b - c, c - a, a - b]), 2)));
  button(buttons, "Start again", () => { Object.assign(state, structuredClone(START)); render(); });

  const table = element("table", { class: "ln-table" }, panel);
  write(element("caption", {}, table), "Lengths");
  const head = element("tr", {}, element("thead", {}, table));
  for (const name of ["part of {g}", "in {g}", "in {dx}"]) write(element("th", { scope: "col" }, head), name);
  const cells = ["along [1]", "along {x\u0302}", "the rest"].map((name, i) => {
    const row = element("tr", {}, table);
    const th = element("th", { scope: "row" }, row);
    LnFigure.key(th, ...(i < 2 ? ["dashed", "orange"] : ["solid", "green"]));
    write(element("span", {}, th), name);
    return [element("td", {}, row), element("td", {}, row)];
  });

  // The lengths of v along 1, along xhat, and of what remains.
  function parts(v, xhat) {
    const up = dot(v, UP), radial = unit(xhat), out = dot(v, radial);
    const rest = sum(sum(v, times(UP, -up)), times(radial, -out));
    return { up, out, rest, lengths: [Math.abs(up), Math.abs(out), length(rest)] };
  }

  function render() {
    const { x, g } = state, { mu, c, variance, s, xhat } = normalise(x, EPS);
    const flat = sum(g, times(UP, -dot(g, UP)));
    const dx = times(sum(flat, times(xhat, -dot(g, xhat) / 3)), 1 / s);
    const before = parts(g, xhat), after = parts(dx, xhat);
    view.elevation = state.elevation;
    drawing.clear();
    view.ground(drawing, 2.4);
    drawing.line(view.circle(Math.sqrt(3)), "currentColor", { width: 1.2 });
    const at = p => view.at(p), from = at(xhat);
    const tip = sum(xhat, g), foot = sum(xhat, flat), left = sum(xhat, before.rest);
    drawing.line([at(x), at(c)], "grey", { width: 1.5, dash: "4 3" });
    drawing.line([view.centre, at(c)], "grey", { width: 1 });
    drawing.line([from, at(foot)], "grey", { width: 1 });
    drawing.line([at(tip), at(foot)], "orange", { dash: "7 4", width: 2.5 });
    drawing.line([at(foot), at(left)], "orange", { dash: "7 4", width: 2.5 });
    drawing.line([from, at(left)], "green", { width: 1.5 });
    drawing.arrow(from, at(sum(xhat, dx)), "green", { width: 4.5 });
    drawing.arrow(from, at(tip), "currentColor");
    drawing.marker("triangle", at(x), "orange");
    drawing.marker("dot", at(c), "blue");
    drawing.marker("square", from, "green");
    // An arrow's name stands beyond its tip, or at the edge of the picture if the tip is outside.
    const name = (string, end, away) => {
      const direction = [end[0] - from[0], end[1] - from[1]], size = Math.hypot(...direction);
      const inside = (v, most) => Math.max(14, Math.min(most - 14, v));
      if (size < 4) return;
      const [x, y] = end.map((v, i) => v + away * direction[i] / size);
      drawing.text([inside(x, WIDTH), inside(y, HEIGHT)], string, "ln-centred");
    };
    drawing.text([at(x)[0] + 10, at(x)[1] - 6], "{x}");
    drawing.text([at(c)[0] - 4, at(c)[1] + 16], "{c}", "ln-centred");
    drawing.text([from[0] - 4, from[1] - 16], "{x\u0302}", "ln-centred");
    name("{g}", at(tip), 14);
    name("{dx}", at(sum(xhat, dx)), 18);
    if (Math.hypot(at(tip)[0] - at(foot)[0], at(tip)[1] - at(foot)[1]) > 30)
      drawing.text([at(foot)[0] + 7, (at(tip)[1] + at(foot)[1]) / 2], "along [1]", "ln-small");
    if (Math.abs(at(foot)[0] - at(left)[0]) > 40)
      drawing.text([(at(foot)[0] + at(left)[0]) / 2, at(foot)[1] + 14], "along {x\u0302}", "ln-small ln-centred");
    moveX(at(x));
    moveG(at(tip));

    for (const name of ["x", "g"]) show[name].forEach((shown, i) => shown(state[name][i]));
    showView(state.elevation);
    cells.forEach((pair, i) => [before, after].forEach((v, j) => { pair[j].textContent = number(v.lengths[i]); }));
    const row = `Row: mean ${number(mu)}, {\u03c3} = ${number(Math.sqrt(variance))}, {s} = ${number(s)}. `;
    const [up, out, rest] = before.lengths, [, kept] = after.lengths;
    if (length(xhat) < 1e-9) say(row + "All numbers are equal: {x\u0302} is zero, and only the part along [1] goes.");
    else if (length(g) < 1e-9) say(row + "{g} is zero, and so is {dx}.");
    else if (out + rest < 1e-6) say(row + "All of {g} lies along [1]: nothing gets through, {dx} = 0.");
    else if (up + rest < 1e-6) say(row + `All of {g} lies along {x\u0302}: of ${number(out)} only `
      + `${number(kept)} gets through.`);
    else if (up + out < 1e-6) say(row + `{g} is at right angles to both: all of it gets through, divided by {s}.`);
    else say(row + `Of {g}, the part along [1] is multiplied by 0, the part along {x\u0302} by {\u03b5}/{s}\u00b3 = `
      + `${number(EPS / s ** 3)}, the rest by 1/{s} = ${number(1 / s)}.`);
  }
  return render;
});
