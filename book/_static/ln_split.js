// An interactive figure. Runs after ln_figure.js, ln_space.js.
// A row x of three numbers and its upstream gradient g: which part of g layer norm's backward lets through.
"use strict";

LnFigure.start("split", ({ picture, panel, label, say }) => {
  const { Drawing, button, element, number, slider, write } = LnFigure;
  const { UP, View, dot, drag, length, normalise, sum, times, unit } = LnSpace;
  const EPS = 0.02, LIMIT = 2;
  const START = { x: [1.25, 1.6, 0.15], g: [0.65, 2, -0.2], elevation: 38 };
  const state = structuredClone(START);
  const view = new View([190, 195], 54);  // at any turn, x is at most LIMIT sqrt(3) from the centre
  const drawing = new Drawing(picture, 380, 390, label);

  const moveX = drawing.handle(place => {
    state.x = drag(state.x, view.under(place, state.x), LIMIT);
    render();
  });
  const moveG = drawing.handle(place => {
    const { xhat } = normalise(state.x, EPS), tip = view.under(place, sum(xhat, state.g));
    state.g = drag(state.g, sum(tip, times(xhat, -1)), LIMIT);
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
  const showView = slider(panel, "View, side to above", { min: 0, max: 90, step: 1, words: v => `${v}\u00b0` },
    value => { state.elevation = value; render(); });

  const set = g => () => { state.g = g(normalise(state.x, EPS)); render(); };
  const buttons = element("div", { class: "ln-buttons" }, panel);
  button(buttons, "{g} along [1]", set(() => [1, 1, 1]));
  const needXhat = [
    button(buttons, "{g} along {x\u0302}", set(({ xhat }) => times(unit(xhat), 1.5))),
    button(buttons, "{g} at right angles", set(({ xhat: [a, b, c] }) => times(unit([b - c, c - a, a - b]), 1.5))),
  ];
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

  // How far an arrow gets before the edge of the picture.
  function reach(start, tip) {
    const along = tip.map((v, i) => v - start[i]), size = Math.hypot(...along);
    const far = [drawing.width - 6, drawing.height - 6];
    const part = Math.min(1, ...along.map((v, i) => ((v > 0 ? far[i] : 6) - start[i]) / (v || -1e-9)));
    const end = start.map((v, i) => v + part * along[i]), direction = along.map(v => v / (size || 1));
    return { end, direction, size, cut: part < 1 };
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
    // g below, the parts of it on top: where they lie along each other, both are seen.
    const seen = reach(from, at(tip));
    drawing.arrow(from, seen.end, "currentColor");
    drawing.line([at(tip), at(foot)], "orange", { dash: "7 4", width: 2.5 });
    drawing.line([at(foot), at(left)], "orange", { dash: "7 4", width: 2.5 });
    drawing.line([from, at(left)], "green", { width: 1.5 });
    const arrow = reach(from, at(sum(xhat, dx)));
    drawing.arrow(from, arrow.end, "green", { width: 4.5 });
    drawing.marker("triangle", at(x), "orange");
    drawing.marker("dot", at(c), "blue");
    drawing.marker("square", from, "green");
    drawing.text(drawing.inside([at(x)[0] + 10, at(x)[1] - 6]), "{x}");
    drawing.text(drawing.inside([at(c)[0] - 14, at(c)[1] + 2]), "{c}", "ln-centred");
    drawing.text([from[0] - 11, from[1] + 15], "{x\u0302}", "ln-centred");
    const small = "ln-small ln-centred";
    // The name of g stands beyond its tip; that of dx beside its tip, on the side away from g.
    const g1 = seen.direction, d1 = arrow.direction, side = d1[0] * g1[1] - d1[1] * g1[0] < -1e-9 ? -1 : 1;
    if (seen.size > 4) drawing.text(drawing.inside(seen.end.map((v, i) => v + 14 * g1[i])), "{g}", "ln-centred");
    const beside = [arrow.end[0] + 16 * side * d1[1], arrow.end[1] - 16 * side * d1[0]];
    if (arrow.cut) drawing.text(drawing.inside(beside, 60, 14), `{dx}, length ${number(length(dx))}`, "ln-centred");
    else if (arrow.size > 4) drawing.text(drawing.inside(beside), "{dx}", "ln-centred");
    if (Math.hypot(at(tip)[0] - at(foot)[0], at(tip)[1] - at(foot)[1]) > 30)
      drawing.text(drawing.inside([at(foot)[0] + 33, 0.7 * at(tip)[1] + 0.3 * at(foot)[1]], 28), "along [1]", small);
    if (view.sine > 0.15 && Math.hypot(at(left)[0] - at(foot)[0], at(left)[1] - at(foot)[1]) > 25)
      drawing.text(drawing.inside([(at(foot)[0] + at(left)[0]) / 2 + 18, (at(foot)[1] + at(left)[1]) / 2 + 18], 28),
        "along {x\u0302}", small);
    moveX(at(x));
    moveG(seen.end);
    for (const made of needXhat) made.disabled = length(xhat) < 1e-9;

    for (const name of ["x", "g"]) show[name].forEach((shown, i) => shown(state[name][i]));
    showView(state.elevation);
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
