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
  const A = unit([-1, 1, 0]), B = unit([-1, -1, 2]);  // of the plane

  // Layer norm of one row, in the notation of the book.
  function normalise(x, eps) {
    const mu = mean(x), c = x.map(v => v - mu), variance = dot(c, c) / 3, s = Math.sqrt(variance + eps);
    return { mu, c, variance, s, xhat: times(c, 1 / s) };
  }

  // The unit vector of the plane at an angle.
  const around = angle => sum(times(A, Math.cos(angle)), times(B, Math.sin(angle)));

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

  // Parallel projection from `elevation` degrees above the plane (0: from the side, 90: along 1), turned about 1 by
  // `turn` degrees: by a little at first, so that no axis is drawn along 1.
  class View {
    constructor(centre) { Object.assign(this, { centre, scale: 70, elevation: 28, turn: 20 }); }

    // In the plane, seen from above: right and up.
    get right() { return this.turned(A, B, -1); }

    get back() { return this.turned(B, A, 1); }

    turned(a, b, sign) {
      const angle = this.turn * Math.PI / 180;
      return sum(times(a, Math.cos(angle)), times(b, sign * Math.sin(angle)));
    }

    // As large as these points allow, between `least` and `most` pixels a unit.
    fit(points, least, most) {
      this.scale = 1;
      const far = points.map(p => this.at(p).map((v, i) => Math.abs(v - this.centre[i]) / (this.centre[i] - 26)));
      this.scale = Math.max(least, Math.min(most, 1 / Math.max(...far.flat())));
    }

    get sine() { return Math.sin(this.elevation * Math.PI / 180); }

    get cosine() { return Math.cos(this.elevation * Math.PI / 180); }

    at(p) {
      const up = dot(p, UP) * this.cosine + dot(p, this.back) * this.sine;
      return [this.centre[0] + this.scale * dot(p, this.right), this.centre[1] - this.scale * up];
    }

    // The point that is drawn at `place` and has the height of `old`. Seen from the side, depth is kept as well.
    under(place, old) {
      const right = (place[0] - this.centre[0]) / this.scale, up = (this.centre[1] - place[1]) / this.scale;
      const height = dot(old, UP), level = this.sine > 0.15;
      const back = level ? (up - height * this.cosine) / this.sine : dot(old, this.back);
      return sum(sum(times(this.right, right), times(this.back, back)), times(UP, height));
    }

    circle(radius, affine = p => p) {
      return Array.from({ length: 73 }, (_, i) => {
        return this.at(affine(times(around(i * Math.PI / 36), radius)));
      });
    }

    // The plane of zero sum as a disc, the axes, and the direction 1.
    ground(drawing, radius) {
      drawing.line(this.circle(radius), "none", { fill: "currentColor", "fill-opacity": 0.07 });
      for (const [i, name] of ["1", "2", "3"].entries()) {
        const axis = [0, 1, 2].map(j => (j === i ? 1.5 : 0)), end = this.at(axis);
        drawing.line([this.centre, end], "grey", { width: 1 });
        this.name(drawing, end, `{x}${"₁₂₃"[name - 1]}`);
      }
      if (this.cosine > 0.3) {
        const end = drawing.inside(this.at(times(UP, 3.1)), 24);
        drawing.line([this.centre, end], "grey", { width: 1, dash: "2 4" });
        this.name(drawing, end, "[1]");
      }
    }

    // The name of an axis, beyond its end, if there is room.
    name(drawing, end, string) {
      const toward = end.map((v, i) => v - this.centre[i]);
      drawing.label(end, string, { toward, small: true, optional: true });
    }
  }

  return { UP, View, around, dot, drag, length, mean, normalise, sum, times, unit };
})();
