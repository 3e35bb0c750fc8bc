// An interactive figure. Runs after ln_figure.js. Shows row_sum, dgamma.
// What a kernel does, step by step: recordings of the interpreter (lnbook/figures/player.py), with the kernel's source.
"use strict";

LnFigure.start("player", ({ figure, live, picture, panel, label, said }) => {
  const { COLOURS, Drawing, button, element, key, slider } = LnFigure;
  const { films, start } = JSON.parse(figure.querySelector("script").textContent);
  const CELL = 20, HIGH = 23, LEFT = 70, ROW = 16, SECTOR = 32, LOOKS = ["blue", "orange", "orange"];
  // "first,step,count", or a list.
  const unpack = packed => {
    if (typeof packed !== "string") return packed || [];
    const [first, step, count] = packed.split(",").map(Number);
    return Array.from({ length: count }, (_, i) => first + i * step);
  };
  for (const film of films)
    if (film.same) Object.assign(film, { ...films[0], ...film, steps: [...films[0].steps.slice(0, film.same), ...film.steps] });
  const state = { film: 0, step: start, timer: 0, fresh: true };
  const now = () => films[state.film].steps[state.step];

  // ---- Where things are drawn. Threads and the numbers of an array have the same 16 columns, with a gap between warps.

  function layout({ arrays, names, size: [threads, , lanes], steps }) {
    const gap = lanes < ROW ? 14 / (ROW / lanes - 1) : 0;
    const column = i => LEFT + CELL * (i % ROW) + gap * Math.floor(i % ROW / lanes);
    const all = names.length < 5 && lanes <= ROW, band = Math.max(lanes, ROW), lines = Math.ceil(band / ROW);
    const used = steps.flatMap(step => step.a || []), first = arrays.map((_, i) => used.find(a => a[0] === i));
    const found = { arrays: [], bands: [], titles: [] };
    let y = 4;
    const section = (title, belongs) => {
      const mine = arrays.flatMap((array, i) => (first[i] && belongs(array.g, first[i][1]) ? i : []));
      if (mine.length) found.titles.push([title, y += 20]);
      for (const i of mine) {
        const length = arrays[i].v.length, rows = Math.min(6, Math.ceil(length / ROW));
        const shift = arrays[i].g || length > ROW ? 0 : (ROW - length) >> 1;
        const at = k => [column(k + shift), y0 + HIGH * Math.floor(k / ROW)], y0 = y + 6;
        found.arrays[i] = { at, rows };
        y = y0 + HIGH * rows + 4;
      }
    };
    section("global memory", (global, kind) => global && !kind);
    y += all ? 44 : 30;
    for (let t = 0; t < threads; t += band) {
      found.bands.push({ t, y, height: (all ? names.length : 1) * HIGH * lines });
      y += found.bands.at(-1).height + 34;
    }
    const cell = (t, r) => {
      const { y } = found.bands[Math.floor(t / band)], line = (all ? r : 0) * lines + Math.floor(t % band / ROW);
      return [column(t), y + HIGH * line];
    };
    section("shared memory", global => !global);
    section("global memory", (global, kind) => global && kind);
    return { ...found, all, band, cell, column, height: y + 2 };
  }

  const layouts = films.map(layout);
  const drawing = new Drawing(picture, 406, Math.max(...layouts.map(({ height }) => height)), label);
  const text = (x, y, string, kind = "ln-centred ln-number") => {
    const made = drawing.add("text", { x, y, class: `ln-small ${kind}` });
    made.textContent = String(string).replace("-", "\u2212");
    // Two digits fit their cell in any font.
    if (kind.endsWith("number") && string.length > 1)
      for (const [name, value] of [["textLength", Math.min(18, 7.5 * string.length)], ["lengthAdjust", "spacingAndGlyphs"]])
        made.setAttribute(name, value);
    return made;
  };
  for (const [name, value] of [["fill", "none"], ["stroke", "currentColor"], ["stroke-width", 0.7]]) drawing.layer.setAttribute(name, value);
  const box = (x, y, width, height, more) => drawing.add("rect", { x, y, width, height, ...more });
  const number = value => {
    const shown = String(value).replace(/^(-?)0\./, "$1.");
    return shown.length < 5 ? shown : String(+value.toPrecision(2)).replace(/^(-?)0\./, "$1.");
  };

  // ---- What is so after a step

  function replay({ arrays, names, steps }, last) {
    const memory = arrays.map(({ v }) => [...v]), registers = names.map(() => []), waiting = new Set();
    const counts = arrays.map(() => ({ requests: 0, sectors: 0, seen: new Set() }));
    for (const step of steps.slice(0, last + 1)) {
      if (step.n) registers.forEach(held => { held.length = 0; });
      for (const [array, kind, , indices, values] of step.a || []) {
        const list = unpack(indices), given = unpack(values);
        const { z, o = 0 } = arrays[array], sectors = new Set(list.map(i => Math.floor((i + o) * z / SECTOR)));
        counts[array].requests++;
        counts[array].sectors += sectors.size;
        sectors.forEach(sector => counts[array].seen.add(sector));
        list.forEach((i, k) => { if (kind) memory[array][i] = given[k] + (kind === 2 ? memory[array][i] : 0); });
      }
      for (const [name, threads, values] of step.r || []) {
        const list = unpack(values);
        unpack(threads).forEach((t, k) => { registers[name][t] = list[k]; });
      }
      if (step.b) unpack(step.t).forEach(t => waiting.add(t));
      if (step.b === 2 || step.n) waiting.clear();
    }
    return { memory, registers, counts, waiting };
  }

  // ---- The picture

  // It grows from its start, where the reader has nothing against it.
  function arrow(from, to, colour, dash) {
    const before = drawing.layer.childElementCount;
    drawing.arrow(from, to, colour, { width: 1.5, dash });
    const flow = element("g", { class: "ln-flow", stroke: "none", style: `transform-origin: ${from[0]}px ${from[1]}px` }, drawing.layer, drawing.svg.namespaceURI);
    flow.append(...[...drawing.layer.children].slice(before, -1));
  }

  function drawMemory(film, { arrays }, { memory, counts }, step) {
    arrays.forEach(({ at, rows }, i) => {
      const { n, g, z, v, o = 0 } = film.arrays[i], per = SECTOR / z, size = Math.min(v.length, rows * ROW);
      const hit = new Map((step.a || []).filter(a => a[0] === i).flatMap(a => unpack(a[3]).map(k => [k, LOOKS[a[1]]])));
      text(LEFT - 6, at(0)[1] + 17, n, "ln-end");
      for (let k = -o; g && k < size; k += per) {
        const [x, y] = at(Math.max(k, 0)), end = at(Math.min(k + per, size) - 1)[0] + CELL;
        const sector = { rx: 3, "stroke-width": 1.2, fill: COLOURS.grey };
        box(x, y, end - x, HIGH, { class: "ln-blank" });
        box(x, y, end - x, HIGH, { ...sector, "fill-opacity": counts[i].seen.has((k + o) / per) ? 0.25 : 0 });
      }
      for (let k = 0; k < size; k++) {
        const [x, y] = at(k), colour = COLOURS[hit.get(k)];
        if (!g || colour) box(x, y, CELL, HIGH, colour && { stroke: colour, fill: colour, "fill-opacity": 0.3 });
        const shown = memory[i][k] ?? "?";
        if (!(g && shown === "?")) text(x + CELL / 2, y + 12, shown === "?" ? shown : number(shown));
      }
    });
  }

  function drawThreads(film, places, { registers, waiting }, step) {
    const { names, size: [threads, block, lanes] } = film, active = new Set(unpack(step.t));
    const changed = new Map((step.r || []).map(([name, who]) => [name, new Set(unpack(who))]));
    if (changed.size) state.name = [...changed.keys()].at(-1);
    const shown = places.all ? names.map((_, r) => r) : [state.name || 0];
    for (const { t, y, height } of places.bands) {
      if (places.all) text(LEFT - 6, y - 5, "thread", "ln-end ln-title");
      shown.forEach((name, r) => text(LEFT - 6, places.cell(t, r)[1] + 17, names[name] || "", "ln-end"));
      for (let first = t; first < Math.min(t + places.band, threads); first += lanes) {
        const [x] = places.cell(first, 0), end = places.column(first + Math.min(lanes, ROW) - 1) + CELL;
        const name = block < threads && block <= lanes ? `block ${first / block}` : `warp ${first % block / lanes}`;
        const waits = waiting.has(first);
        text((x + end) / 2, y + height + 12, name + (waits ? ": waits" : ""), "ln-centred");
        if (waits) box(x, y + height + 20, end - x, 4, { fill: "currentColor" });
        box(x, y, end - x, height, { class: "ln-blank" });
        for (let i = first; i < Math.min(first + lanes, threads); i++) {
          if (places.all) text(places.column(i) + CELL / 2, y - 9, String(i % block), "ln-title ln-centred ln-number");
          shown.forEach((register, r) => {
            const [x, y] = places.cell(i, r), fresh = changed.get(register)?.has(i) && registers[register][i] != null;
            box(x, y, CELL, HIGH, fresh && { fill: COLOURS.green, "fill-opacity": 0.3 });
            if (registers[register]?.[i] != null) text(x + CELL / 2, y + 12, number(registers[register][i]));
          });
        }
        const busy = [...active].some(i => i >= first && i < first + lanes);
        box(x, y, end - x, height, { rx: 3, "stroke-width": busy ? 3 : 1.2 });
      }
    }
  }

  function drawMoves({ size: [, block] }, places, step) {
    const middle = CELL / 2, bottom = t => places.bands[Math.floor(t / places.band)];
    for (const [array, kind, threads, indices] of step.a || []) {
      const list = unpack(indices), who = unpack(threads);
      list.forEach((index, k) => {
        const t = who[k], { y, height } = bottom(t), [x, top] = places.arrays[array].at(index);
        if (index >= ROW * places.arrays[array].rows) return;
        const above = top < y, thread = [places.column(t) + middle, above ? y - (places.all ? 18 : 2) : y + height + (places.all ? 20 : 2)];
        const cell = [x + middle, above ? top + HIGH : top];
        arrow(...(kind ? [thread, cell] : [cell, thread]), LOOKS[kind]);
      });
    }
    const [to, from] = (step.x || []).map(unpack);
    (to || []).forEach((t, k) => {
      const a = places.column(t) + middle, b = places.column(from[k]) + middle, { y } = bottom(t);
      if (t > from[k]) drawing.add("path", { d: `M${a} ${y - 17}Q${(a + b) / 2} ${y - 21 - Math.abs(a - b) / 3} ${b} ${y - 17}`,
        fill: "none", stroke: COLOURS.green, "stroke-width": 2, class: "ln-flow" });
    });
    // Blocks whose atomics want the same address stand beside it, in a queue.
    const blocks = [...new Set(unpack(step.q).map(t => Math.floor(t / block)))], [array, , , indices] = step.a?.[0] || [];
    blocks.forEach((name, k) => {
      const [x, y] = places.arrays[array].at(Math.max(...unpack(indices))), left = x + CELL + 12 + 68 * k;
      if (left > 340) return;
      box(left, y + 1, 62, HIGH - 2, { rx: 10, stroke: COLOURS.orange, "stroke-width": 1.5, "stroke-dasharray": "4 3" });
      text(left + 31, y + 12, `block ${name}`, "ln-centred");
    });
  }

  function drawRace(places, [, array, index]) {
    const [x, y] = places.arrays[array].at(index);
    box(x - 3, y - 3, CELL + 6, HIGH + 6, { rx: 4, class: "ln-race" });
    text(x + CELL + 8, y + 17, "race", "ln-race");
  }

  // ---- Controls, words, source

  const controls = element("div", { class: "ln-buttons" }, picture);
  const last = () => films[state.film].steps.length - 1;
  function pause() {
    clearInterval(state.timer);
    state.timer = 0;
    play.textContent = "Play";
  }
  function go(to) {
    state.step = Math.max(0, Math.min(last(), to));
    state.fresh = false;
    if (state.step === last()) pause();
    render();
  }
  const by = way => { pause(); go(state.step + way); };
  const play = button(controls, "Play", () => {
    if (state.timer) return pause();
    play.textContent = "Pause";
    state.timer = setInterval(() => go(state.step + 1), 1500);
    go(state.fresh || state.step === last() ? 0 : state.step + 1);
  });
  const back = button(controls, "Back", () => by(-1)), forward = button(controls, "Forward", () => by(1));
  const showStep = slider(picture, "Step", { min: 1, step: 1, words: v => `${v} of ${last() + 1}` },
    v => by(v - 1 - state.step));
  const range = picture.querySelector("input");
  picture.append(said);
  live.addEventListener("keydown", event => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way || !event.target.matches("button") || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    by(way);
  });

  const switches = element("div", { class: "ln-buttons", role: "group", "aria-label": "Which kernel" }, panel);
  const choices = films.length < 2 ? [] : films.map((film, i) => button(switches, film.name, () => {
    state.film = i;
    by(film.same === undefined ? 0 : film.same - state.step);
  }));
  const code = element("ol", { class: "ln-code", tabindex: 0, "aria-label": "The kernel" }, panel);
  const table = element("table", { class: "ln-table" }, panel);

  function list({ arrays, code: lines, off }, { counts }, step) {
    code.replaceChildren(...lines.map((line, i) => {
      const marks = { "ln-here": step.l.includes(i), "ln-raced": step.c?.[0] === i, "ln-off": i === off };
      const row = element("li", { class: Object.keys(marks).filter(mark => marks[mark]).join(" ") });
      if (marks["ln-here"]) row.setAttribute("aria-current", "step");
      row.textContent = line || " ";
      row.style.setProperty("--in", line.search(/\S|$/));
      return row;
    }));
    const here = code.querySelector(".ln-here");
    if (here) code.scrollTop = here.offsetTop - code.clientHeight / 2;
    const rows = arrays.flatMap(({ n, g }, i) => (g ? [[n, counts[i].requests, counts[i].sectors]] : []));
    table.replaceChildren();
    element("caption", {}, table).textContent = "What was asked of global memory";
    for (const [i, cells] of [["global memory", "requests", "sectors"], ...rows].entries()) {
      const row = element("tr", {}, table);
      cells.forEach((cell, j) => {
        element(i && j ? "td" : "th", i && j ? {} : { scope: i ? "row" : "col" }, row).textContent = cell;
      });
    }
  }

  function render() {
    const film = films[state.film], places = layouts[state.film], step = now(), then = replay(film, state.step);
    range.max = last() + 1;
    drawing.clear();
    drawMoves(film, places, step);
    drawMemory(film, places, then, step);
    drawThreads(film, places, then, step);
    // In the margin, in two lines: arrows run over the columns.
    for (const [title, y] of places.titles)
      title.split(" ").forEach((word, line) => text(LEFT - 6, y - 10 + 14 * line, word, "ln-end ln-title"));
    if (step.c) drawRace(places, step.c);
    list(film, then, step);
    showStep(state.step + 1);
    back.disabled = !state.step;
    forward.disabled = state.step === last();
    choices.forEach((choice, i) => choice.setAttribute("aria-pressed", i === state.film));
    said.textContent = step.s;
  }
  return render;
});
