// A term of the formula of dx, or of the words below it, lights up with its code and its arrow. And a symbol says what it is
// where the pointer rests on it; the page "Notation" lists all of them.
const LN_TERMS = {
  // The formula's name: for each of its colours the code of the page, and the colour that it has in the moving figure.
  "eq-moves": { blue: [/c = x - mean/, "blue"], green: [/xhat = c \/ np\.sqrt\(var \+ eps\)/, "green"],
    pink: [/return gamma \* xhat \+ beta/, "pink"] },
  "eq-dx": { blue: [/grad \/ root/], orange: [/np\.full\(5, d_mean \/ 5\)/, "orange"],
    green: [/d_var \* 2 \* c \/ 5/, "pink"] },
  "eq-backward": { blue: [/g = gamma \* dy(?=\n    mean_g )/], orange: [/mean_g = .*|(?<=g - )mean_g/], green: [/mean_gx = .*|xhat \* mean_gx/] },
  "eq-twenty": { blue: [/g = gamma \* dy/], orange: [/g\.mean\(-1, keepdims=True\)/], green: [/xhat \* mean_gx/] },
};
const LN_SYMBOLS = { x: "input", μ: "mean of a row", σ: "square root of the variance of a row", ε: "added to the variance, under the root",
  s: "divisor of a row", r: "factor of a row, one over the divisor", γ: "scale", β: "shift", y: "output",
  g: "upstream gradient of x\u0302", κ: "condition number of the backward pass", ρ: "ratio: distance of a row from zero, in standard deviations",
  τ: "size of one rounding in units of u, as a root mean square" };

document.addEventListener("DOMContentLoaded", () => {
  const article = document.querySelector("article");
  if (!article) return;

  // Terms. Code is marked by ranges of its text, so that editors and the colours of words are left alone.
  const ranges = (pattern) => [...article.querySelectorAll(".highlight pre")].flatMap((pre) => {
    const nodes = [], walker = document.createTreeWalker(pre, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) nodes.push(walker.currentNode);
    const at = (place) => {
      for (const node of nodes) {
        if (place <= node.length) return [node, place];
        place -= node.length;
      }
      return [pre, 0];
    };
    return [...pre.textContent.matchAll(new RegExp(pattern, "g"))].map((match) => {
      const range = new Range();
      range.setStart(...at(match.index));
      range.setEnd(...at(match.index + match[0].length));
      return range;
    });
  });
  const dark = () => {
    article.querySelectorAll(".ln-lit").forEach((part) => part.classList.remove("ln-lit"));
    delete article.dataset.lit;
    window.CSS?.highlights?.clear();
  };
  for (const [name, terms] of Object.entries(LN_TERMS)) {
    const formula = document.getElementById(`equation-${name}`), words = formula?.nextElementSibling;
    if (!words) continue;
    const light = (colour) => {
      dark();
      const [code, drawn] = terms[colour];
      for (const place of [formula, words]) place.querySelectorAll(`.ln-${colour}`).forEach((part) => part.classList.add("ln-lit"));
      if (drawn) article.dataset.lit = drawn;
      if (window.CSS?.highlights) CSS.highlights.set(`ln-${colour}`, new Highlight(...ranges(code)));
    };
    const colourOf = ({ target }) => Object.keys(terms).find((colour) => target.closest?.(`.ln-${colour}`));
    for (const place of [formula, words]) {
      for (const kind of ["pointerover", "focusin"]) {
        place.addEventListener(kind, (event) => { const colour = colourOf(event); if (colour) light(colour); });
      }
      for (const kind of ["pointerleave", "focusout"]) place.addEventListener(kind, dark);
    }
    for (const colour of Object.keys(terms)) words.querySelectorAll(`.ln-${colour}`).forEach((part) => { part.tabIndex = 0; });
  }

  // Symbols. MathJax draws a letter from the number of its glyph; in plain letters that is its name here.
  article.addEventListener("pointerover", ({ target }) => {
    const letter = target.closest?.("mjx-mi"), glyph = /mjx-c([0-9A-F]+)/.exec(letter?.firstElementChild?.className ?? "");
    if (!glyph || letter.title) return;
    const symbol = String.fromCodePoint(parseInt(glyph[1], 16)).normalize("NFKC"), hat = letter.closest("mjx-mover");
    letter.title = hat && symbol === "x" && letter.matches("mjx-base *") ? "x\u0302: normalised row"
      : symbol in LN_SYMBOLS ? `${symbol}: ${LN_SYMBOLS[symbol]}` : "";
  });
});
