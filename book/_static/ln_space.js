// Rows of three numbers as points in space, drawn with the direction (1, 1, 1) pointing up: the mean of a row
// is its height, up to the factor sqrt(3), and the plane of zero sum is level.
"use strict";

const LnSpace = (() => {
  const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
  const sum = (a, b) => a.map((v, i) => v + b[i]);
  const times = (a, k) => a.map(v => v * k);
  const length = a => Math.hypot(...a);
  const mean = a => (a[0] + a[1] + a[2]) / 3;
  // What the mean's rounding leaves of a row of equal numbers has no direction.
  const unit = a => (length(a) > 1e-9 ? times(a, 1 / length(a)) : [0, 0, 0]);

  const UP = unit([1, 1, 1]);
  // In the plane, seen from above: right and up. Turned a little, so that no axis is drawn along 1.
  const TURN = 20 * Math.PI / 180, A = unit([-1, 1, 0]), B = unit([-1, -1, 2]);
  const RIGHT = sum(times(A, Math.cos(TURN)), times(B, -Math.sin(TURN)));
  const BACK = sum(times(A, Math.sin(TURN)), times(B, Math.cos(TURN)));

  // Layer norm of one row, in the notation of the book.
  function normalise(x, eps) {
    const mu = mean(x), c = x.map(v => v - mu), variance = dot(c, c) / 3, s = Math.sqrt(variance + eps);
    return { mu, c, variance, s, xhat: times(c, 1 / s) };
  }

  // From `old` towards `wanted`, which has the same mean, on the sliders' grid: the last number is what the mean
  // leaves. It stops at the sliders' limit.
  function drag(old, wanted, limit) {
    for (let way = 1; way > 0; way -= 0.125) {
      const [a, b] = old.map((v, i) => Math.round(20 * (v + way * (wanted[i] - v))) / 20);
      const next = [a, b, Number((3 * mean(old) - a - b).toFixed(9))];
      if (next.every(v => Math.abs(v) <= limit)) return next;
    }
    return old;
  }

  // Parallel projection from `elevation` degrees above the plane (0: from the side, 90: along 1).
  class View {
    constructor(centre, scale) { Object.assign(this, { centre, scale, elevation: 28 }); }

    get sine() { return Math.sin(this.elevation * Math.PI / 180); }

    get cosine() { return Math.cos(this.elevation * Math.PI / 180); }

    at(p) {
      const up = dot(p, UP) * this.cosine + dot(p, BACK) * this.sine;
      return [this.centre[0] + this.scale * dot(p, RIGHT), this.centre[1] - this.scale * up];
    }

    // The point that is drawn at `place` and has the height of `old`. Seen from the side, depth is kept as well.
    under(place, old) {
      const right = (place[0] - this.centre[0]) / this.scale, up = (this.centre[1] - place[1]) / this.scale;
      const height = dot(old, UP), level = this.sine > 0.15;
      const back = level ? (up - height * this.cosine) / this.sine : dot(old, BACK);
      return sum(sum(times(RIGHT, right), times(BACK, back)), times(UP, height));
    }

    circle(radius, affine = p => p) {
      return Array.from({ length: 73 }, (_, i) => {
        const angle = i * Math.PI / 36;
        return this.at(affine(sum(times(RIGHT, radius * Math.cos(angle)), times(BACK, radius * Math.sin(angle)))));
      });
    }

    // The plane of zero sum as a disc, the axes, and the direction 1.
    ground(drawing, radius) {
      drawing.line(this.circle(radius), "none", { fill: "currentColor", "fill-opacity": 0.07 });
      for (const [i, name] of ["1", "2", "3"].entries()) {
        const axis = [0, 1, 2].map(j => (j === i ? 1.5 : 0)), end = this.at(axis);
        drawing.line([this.centre, end], "grey", { width: 1 });
        drawing.text(this.at(times(axis, 1.16)), `{x}${"₁₂₃"[name - 1]}`, "ln-small ln-centred");
      }
      if (this.cosine > 0.3) {
        drawing.line([this.centre, this.at(times(UP, 3.1))], "grey", { width: 1, dash: "2 4" });
        drawing.text(this.at(times(UP, 3.3)), "[1]", "ln-small ln-centred");
      }
    }
  }

  return { UP, View, dot, drag, length, mean, normalise, sum, times, unit };
})();
