// Four ways to compute the variance of one row in float32: Math.fround rounds as hardware does. The formulas and
// the order of the sums are lnlib.variance's, and a test holds every result equal to the library's, bit for bit.
"use strict";

const LnVariance = (() => {
  const f = Math.fround, D = 64, U = 2 ** -24;

  // Neighbours, then the sums of neighbours, until one is left, as the library's "pairwise"; D is a power of two.
  function mean(a) {
    let sums = a;
    while (sums.length > 1) sums = Array.from({ length: sums.length / 2 }, (_, i) => f(sums[2 * i] + sums[2 * i + 1]));
    return f(sums[0] / a.length);
  }

  const squares = a => a.map(v => f(v * v));

  function naive(x) {
    const m = mean(x);
    return f(mean(squares(x)) - f(m * m));
  }

  function twoPass(x) {
    const m = mean(x);
    return mean(squares(x.map(v => f(v - m))));
  }

  function welford(x) {
    let m = 0, S = 0;
    x.forEach((v, i) => {
      const d = f(v - m);
      m = f(m + f(d / (i + 1)));
      S = f(S + f(d * f(v - m)));
    });
    return f(S / x.length);
  }

  function recentred(x) {
    const m = mean(x), d = x.map(v => f(v - m)), r = mean(d);
    return mean(squares(d.map(v => f(v - r))));
  }

  // The variance of the float32 numbers themselves, in float64: its own error is far below what is shown.
  function exact(x) {
    const m = x.reduce((a, b) => a + b) / x.length;
    return x.reduce((total, v) => total + (v - m) ** 2, 0) / x.length;
  }

  // Numbers from -sqrt(3) to sqrt(3), so with sigma near 1, from a generator that is the same everywhere.
  function noise(seed) {
    let state = seed;
    return Array.from({ length: D }, () => {
      state = (1664525 * state + 1013904223) % 2 ** 32;
      return (2 * (state / 2 ** 32) - 1) * Math.sqrt(3);
    });
  }

  const row = (offset, seed) => noise(seed).map(v => f(offset + v));
  // Eight offsets a decade from 10 on, rounded to whole numbers.
  const OFFSETS = Array.from({ length: 49 }, (_, k) => Math.round(10 ** (1 + k / 8)));
  // Of float32 numbers near the square of the mean.
  const spacing = offset => 2 ** (Math.floor(Math.log2(offset ** 2)) - 23);
  return { D, OFFSETS, U, exact, naive, recentred, row, spacing, twoPass, welford };
})();
