// What the interactive figures share: a drawing, labelled sliders and buttons, dragging, and a text that
// says the state in words. A figure's own file calls LnFigure.start(name, build). Plain scripts, not
// modules: browsers refuse modules on a page that was opened from disk.
"use strict";

const LnFigure = (() => {
  // Those of the style sheet, so of the theme.
  const COLOURS = Object.fromEntries(["blue", "orange", "green", "pink", "grey"].map(name => [name, `var(--ln-${name})`]));
  const SVG = "http://www.w3.org/2000/svg";

  function element(tag, attributes, parent, namespace) {
    const made = namespace ? document.createElementNS(namespace, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {}))
      made.setAttribute(name, typeof value === "number" && namespace ? +value.toFixed(2) : value);
    if (parent) parent.append(made);
    return made;
  }

  // Text in which {x} is a variable (italic) and [1] a vector (bold): tspans in a drawing, spans on the page.
  function write(parent, string) {
    const inside = parent.namespaceURI === SVG;
    parent.replaceChildren();
    for (const part of string.split(/(\{.*?\}|\[.*?\])/).filter(Boolean)) {
      const kind = { "{": "ln-variable", "[": "ln-vector" }[part[0]];
      if (!kind) parent.append(part);
      else element(inside ? "tspan" : "span", { class: kind }, parent, inside && SVG).textContent = part.slice(1, -1);
    }
    return parent;
  }

  // A number for the text, with a real minus sign and none before a zero.
  function number(value, digits = 2) {
    const shown = value.toFixed(digits);
    return (Number(shown) === 0 ? (0).toFixed(digits) : shown).replace("-", "\u2212");
  }

  const power = (base, exponent) =>
    base + [...String(exponent)].map(sign => (sign === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign])).join("");

  // One digit and a power of ten, as the book's text writes small numbers.
  function scientific(value) {
    const [digit, exponent] = value.toExponential(0).split("e");
    return value === 0 ? "0" : `${digit} \u00d7 ${power(10, Number(exponent))}`;
  }

  const written = points => points.map(p => p.map(v => v.toFixed(2)).join(",")).join(" ");

  // Markers as in the book's other figures.
  function drawMarker(parent, kind, [x, y], colour) {
    const path = { triangle: "M0-7L6.5 5H-6.5Z", dot: "M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0-11 0Z",
      square: "M-5-5H5V5H-5Z", diamond: "M0-7L7 0L0 7L-7 0Z", cross: "M-5-5L5 5M5-5L-5 5" }[kind];
    const paint = { fill: COLOURS[colour] }, outline = { fill: "none", stroke: COLOURS[colour], "stroke-width": 2.5 };
    const transform = `translate(${x.toFixed(2)} ${y.toFixed(2)})`;
    element("path", { d: path, transform, ...(kind === "cross" ? outline : paint) }, parent, SVG);
  }

  // The same marker, or a solid or dashed line, on the page as a key.
  function key(parent, kind, colour) {
    const line = `border-top: 3px ${kind} ${COLOURS[colour] || colour}`;
    if (kind === "solid" || kind === "dashed") return element("span", { class: "ln-key", style: line }, parent);
    const box = element("svg", { viewBox: "-8 -8 16 16", class: "ln-mark", "aria-hidden": "true" }, parent, SVG);
    return drawMarker(box, kind, [0, 0], colour);
  }

  // Places for a name: how far from its point, and how far turned from the wanted direction. The cheapest come first.
  const PLACES = [15, 18, 22, 27, 32, 39, 46, 55, 64, 77, 90, 107, 125].flatMap(radius =>
    Array.from({ length: 24 }, (_, k) => ({ radius, turn: (k % 2 ? 1 : -1) * Math.ceil(k / 2) * Math.PI / 12 })))
    .sort((a, b) => a.radius - b.radius + 10 * (Math.abs(a.turn) - Math.abs(b.turn)));
  const NEAR = PLACES.filter(({ radius }) => radius < 25);

  // Boxes: the middle, half the width and half the height.
  const touches = (a, b) => Math.abs(a[0] - b[0]) < a[2] + b[2] && Math.abs(a[1] - b[1]) < a[3] + b[3];

  // Whether a segment passes through a box: the part of it that is within the box's width, and of that the part within
  // its height.
  function crosses([a, b], box) {
    let [from, to] = [0, 1];
    for (const i of [0, 1]) {
      const long = b[i] - a[i] || 1e-9, ends = [-1, 1].map(side => (box[i] + side * box[i + 2] - a[i]) / long);
      from = Math.max(from, Math.min(...ends));
      to = Math.min(to, Math.max(...ends));
    }
    return from < to;
  }

  // The drawing: everything but the handles is drawn anew for each state, which keeps a figure one function.
  class Drawing {
    constructor(parent, width, height, label) {
      Object.assign(this, { width, height, labels: [], marks: [], segments: [] });
      this.svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, parent, SVG);
      this.layer = element("g", {}, this.svg, SVG);
      this.handles = element("g", { class: "ln-handles" }, this.svg, SVG);
    }

    clear() {
      this.layer.replaceChildren();
      Object.assign(this, { labels: [], marks: [], segments: [] });
    }

    add(tag, attributes) { return element(tag, attributes, this.layer, SVG); }

    line(points, colour, { width = 2, dash = "none", ...more } = {}) {
      if (colour !== "none") points.slice(1).forEach((point, i) => this.segments.push([points[i], point]));
      this.add("polyline", { points: written(points), fill: "none", stroke: COLOURS[colour] || colour,
        "stroke-width": width, "stroke-dasharray": dash, ...more });
    }

    arrow(start, end, colour, options) {
      const [dx, dy] = [end[0] - start[0], end[1] - start[1]], length = Math.hypot(dx, dy);
      if (length < 1) return;
      const head = Math.min(10, length), [ux, uy] = [dx / length, dy / length];
      const back = [end[0] - head * ux, end[1] - head * uy], half = 0.42 * head;
      this.line([start, back], colour, options);
      const tip = [end, [back[0] - half * uy, back[1] + half * ux], [back[0] + half * uy, back[1] - half * ux]];
      this.add("polygon", { points: written(tip), fill: COLOURS[colour] || colour });
      this.segments.push([tip[0], tip[1]], [tip[1], tip[2]], [tip[2], tip[0]]);
    }

    marker(kind, place, colour) {
      this.marks.push(place);
      drawMarker(this.layer, kind, place, colour);
    }

    // The place, or the nearest one that is `margin` from the edges: names of things near an edge stay readable.
    inside([x, y], margin = 12, high = margin) {
      return [Math.max(margin, Math.min(this.width - margin, x)), Math.max(high, Math.min(this.height - high, y))];
    }

    text([x, y], string, kind) { write(this.add("text", { x, y, class: kind }), string); }

    // A name for the point `at`, if possible `toward` there. placeLabels() finds it a place. A colour says what it names.
    label(at, string, { toward = [1, -1], small = false, optional = false, colour = "" } = {}) {
      this.labels.push({ at, string, toward, small, optional, colour });
    }

    // The collision step: each name in turn takes the nearest place around its point, the wanted direction first, that is
    // inside the picture and off names, markers and lines; a name that finds none is left out. Sizes are estimates, so that
    // a picture does not depend on fonts.
    placeLabels() {
      const taken = this.marks.map(place => [...place, 8, 8]);
      const rank = label => (label.optional ? 2 : label.small ? 1 : 0);
      for (const { at, string, toward, small, optional, colour } of this.labels.toSorted((a, b) => rank(a) - rank(b))) {
        const size = small ? 14.5 : 17, letters = string.replace(/[{}[\]\u0302]/g, "").length;
        const half = [letters * size * 0.29 + 4, size * 0.5 + 2], first = Math.atan2(toward[1], toward[0]);
        for (const { radius, turn } of optional ? NEAR : PLACES) {
          const wanted = [at[0] + (radius + half[0] - 8) * Math.cos(first + turn), at[1] + radius * Math.sin(first + turn)];
          const box = [...this.inside(wanted, half[0] + 2, half[1] + 2), ...half];
          if (taken.some(other => touches(box, other)) || this.segments.some(segment => crosses(segment, box))) continue;
          taken.push(box);
          this.text(box.slice(0, 2), string, (small ? "ln-small ln-centred" : "ln-centred") + (colour && ` ln-${colour}`));
          break;
        }
      }
    }

    // Dragging beside the handles turns what is seen, half a degree for a unit of the picture: state.turn and
    // state.elevation. begin() is called before the first change, turned() after each.
    onTurn(state, begin, turned) {
      let last = null;
      this.svg.classList.add("ln-turns");
      this.svg.addEventListener("pointerdown", event => {
        if (event.target.closest(".ln-handles")) return;
        this.svg.setPointerCapture(event.pointerId);
        last = [event.clientX, event.clientY];
        begin();
      });
      this.svg.addEventListener("pointermove", event => {
        if (!last || !this.svg.hasPointerCapture(event.pointerId)) return;
        const scale = this.svg.getScreenCTM().a;
        state.turn = (state.turn + (event.clientX - last[0]) / scale / 2 + 360) % 360;
        state.elevation = Math.max(0, Math.min(90, state.elevation + (event.clientY - last[1]) / scale / 2));
        last = [event.clientX, event.clientY];
        turned();
      });
      for (const end of ["pointerup", "pointercancel"]) this.svg.addEventListener(end, () => { last = null; });
    }

    // A place to drag with mouse or finger. Only it keeps a touch from scrolling the page.
    handle(move, begin = () => {}) {
      const circle = element("circle", { r: 17 }, this.handles, SVG);
      circle.addEventListener("pointerdown", event => {
        circle.setPointerCapture(event.pointerId);
        event.preventDefault();
        begin();
      });
      circle.addEventListener("pointermove", event => {
        if (!circle.hasPointerCapture(event.pointerId)) return;
        const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.svg.getScreenCTM().inverse());
        move([at.x, at.y]);
      });
      return ([x, y]) => { circle.setAttribute("cx", x); circle.setAttribute("cy", y); };
    }
  }

  // A slider with its name before it and its value after it. words(value) is what a screen reader says.
  // begin() is called once for each movement of it, before the first change.
  function slider(parent, name, { min, max, step, words }, changed, begin = () => {}) {
    const row = element("div", { class: "ln-slider" }, parent), named = element("label", {}, row);
    write(element("span", {}, named), name);
    const input = element("input", { type: "range", min, max, step }, named);
    const shown = element("output", {}, row);
    let moving = false;
    input.addEventListener("input", () => {
      if (!moving) begin();
      moving = true;
      changed(Number(input.value));
    });
    input.addEventListener("change", () => { moving = false; });
    return value => {
      input.value = value;
      shown.textContent = words(value);
      input.setAttribute("aria-valuetext", words(value));
    };
  }

  // Sliders for what dragging beside the handles does (onTurn), for those who do not drag.
  function viewSliders(parent, state, turned, begin) {
    const set = { elevation: ["Tilt", 90], turn: ["Turn", 359] };
    const show = Object.entries(set).map(([key, [name, max]]) => slider(parent, name,
      { min: 0, max, step: 1, words: v => `${Math.round(v) % 360}\u00b0` },
      value => { state[key] = value; turned(); }, begin));
    return () => Object.keys(set).forEach((key, i) => show[i](state[key]));
  }

  function button(parent, name, pressed) {
    const made = write(element("button", { type: "button" }, parent), name);
    made.addEventListener("click", pressed);
    return made;
  }

  // Between two states, numbers and arrays of them by name, a part of the way.
  const between = (a, b, way) => (typeof b === "number" ? a + way * (b - a)
    : Array.isArray(b) ? b.map((v, i) => between(a[i], v, way))
      : Object.fromEntries(Object.keys(b).map(key => [key, between(a[key], b[key], way)])));

  // Draws a state: at once, or by a movement of 200 ms from what is drawn, where the reader has nothing against it.
  function mover(draw) {
    let shown = null, frame = 0;
    return (state, smooth) => {
      cancelAnimationFrame(frame);
      const from = shown, target = structuredClone(state), start = performance.now();
      const moves = smooth && from && !matchMedia("(prefers-reduced-motion: reduce)").matches;
      const step = now => {
        const way = moves ? Math.min(1, Math.max(0, now - start) / 200) : 1;
        shown = way < 1 ? between(from, target, way) : target;
        draw(shown);
        if (way < 1) frame = requestAnimationFrame(step);
      };
      step(start);
    };
  }

  // build(parts) sets up one figure and returns the function that draws its state.
  const builds = {};
  function start(name, build) {
    builds[name] = build;
    for (const figure of document.querySelectorAll(`[data-ln-figure~="${name}"]:not(.ln-started)`)) {
      // Built out of sight: should a script fail, the static picture stays.
      const live = element("div", { class: "ln-live" });
      const picture = element("div", { class: "ln-picture" }, live);
      const panel = element("div", { class: "ln-panel" }, live);
      const say = element("p", { class: "ln-say", "aria-live": "polite", "aria-atomic": "true" });
      live.append(say);
      build({ figure, live, picture, panel, said: say, label: figure.dataset.lnLabel, say: string => write(say, string) })();
      figure.append(live);
      figure.classList.add("ln-started");
    }
  }

  // For figures that came onto the page since, from a live cell.
  const again = () => Object.entries(builds).forEach(([name, build]) => start(name, build));

  return { COLOURS, Drawing, again, button, element, key, mover, number, power, scientific, slider, start, viewSliders, write };
})();
