// The theme lets the keyboard reach what scrolls sideways, and looks for it when the window changes its size.
// Opening a folded part shows more of it: look again.
document.addEventListener("click", (event) => {
  if (event.target.closest(".toggle-button, .admonition-title, summary")) window.dispatchEvent(new Event("resize"));
});

// Nor does it know formulas and tables of cells: of hundreds, the keyboard stops at those that scroll.
const stops = () => document.querySelectorAll("mjx-container, .ln-cells").forEach((box) => {
  box.tabIndex = box.matches(".ln-cells, [display]") && box.scrollWidth > box.clientWidth ? 0 : -1;
});
// On a phone a formula is made smaller, to three quarters at most, before it scrolls.
const fit = () => {
  const formulas = [...document.querySelectorAll("mjx-container[display]")];
  formulas.forEach((formula) => { formula.style.fontSize = formula.dataset.size ??= formula.style.fontSize; });
  const shares = formulas.map((formula) => formula.clientWidth / formula.querySelector("mjx-math").offsetWidth);
  formulas.forEach((formula, i) => {
    if (shares[i] < 1) formula.style.fontSize = `calc(${formula.dataset.size} * ${Math.max(0.75, shares[i] - 0.01)})`;
  });
  stops();
};
addEventListener("resize", fit);
addEventListener("load", async () => { await window.MathJax?.startup.promise; fit(); });

// On a phone a table's row is a card (ln.css): each cell has the head of its column.
addEventListener("DOMContentLoaded", () => document.querySelectorAll("article .table").forEach((table) => {
  const heads = [...table.querySelectorAll("thead th")].map((head) => asText(head.cloneNode(true)).textContent.trim());
  table.querySelectorAll("tbody tr").forEach((row) => [...row.cells].forEach((cell, i) => { cell.dataset.head = heads[i] ?? ""; }));
}));

// A page that was found by the site's search may have the words in a folded aside. Sphinx's own script, which marks them,
// forgets them when the page is there: they are read before.
const terms = (localStorage.getItem("sphinx_highlight_terms") || "").split(/\s+/).filter(Boolean);
addEventListener("DOMContentLoaded", () => {
  const asides = terms.length ? document.querySelectorAll("details.ln-aside") : [];
  asides.forEach((aside) => { aside.open = terms.every((term) => aside.textContent.toLowerCase().includes(term)); });
});

// A formula's TeX as a line of text: letters and signs; what only looks has no name here and goes, names of functions stay.
const SIGNS = { alpha: "α", beta: "β", gamma: "γ", delta: "δ", varepsilon: "ε", eta: "η", kappa: "κ", mu: "μ", rho: "ρ", sigma: "σ",
  tau: "τ", varphi: "φ", omega: "ω", ell: "ℓ", sum: "Σ", int: "∫", partial: "∂", nabla: "∇", top: "ᵀ", cdot: "·",
  times: "×", pm: "±", approx: "≈", propto: "∝", le: "≤", ge: "≥", ne: "≠", gg: "≫", to: "→", dots: "…", ldots: "…", langle: "⟨",
  rangle: "⟩", lVert: "‖", rVert: "‖", lvert: "|", rvert: "|", lceil: "⌈", rceil: "⌉", lfloor: "⌊", rfloor: "⌋", log: "log",
  max: "max", min: "min", bmod: "mod" };
const bracketed = (group) => group.replace(/^\{(.*)\}$/, (all, inside) => (/.[-+ \\]/.test(inside) ? `(${inside})` : inside));
const plain = (tex) => tex.replace(/\\\|/g, "‖").replace(/\\(begin|end)\{\w+\*?\}|\\class\{[\w-]+\}|\\\\(\[\w+\])?|\\[^a-zA-Z]|&|\s+/g, " ")
  .replace(/\\(?:text|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}/g, "$1")
  .replace(/\\(hat|tilde)\s*(\\[a-zA-Z]+|\w)/g, (all, mark, of) => of + (mark === "hat" ? "\u0302" : "\u0303"))
  .replace(/\\overline\s*(\\[a-zA-Z]+|\w)/g, "$1\u0304").replace(/\\overline\s*\{([^{}]*)\}/g, "mean($1)")
  .replace(/([_^])(\{[^{}]*\})/g, (all, place, group) => place + bracketed(group))
  .replace(/\\sqrt\s*(\{[^{}]*\})?/g, (all, inside = "") => "√" + bracketed(inside))
  .replace(/\\t?frac\s*(\{[^{}]*\}|\w)\s*(\{[^{}]*\}|\w)/g, (all, above, below) => `${bracketed(above)}/${bracketed(below)}`)
  .replace(/\\([a-zA-Z]+)/g, (all, name) => SIGNS[name] || "").replace(/[{}]/g, "").replace(/-/g, "\u2212");
const asText = (part) => {
  part.querySelectorAll(".math").forEach((formula) => { formula.textContent = plain(formula.textContent); });
  return part;
};

// What readers type for words of the book
const SAME = { bf16: "bfloat16", fp16: "float16", fp32: "float32", epsilon: "eps", reduction: "mean", reductions: "means" };
// The section of a page with most of the words, after how many it has; those in its heading count twice.
const sectionWith = (page, words) => {
  const count = (text) => words.filter((word) => text.toLowerCase().includes(word)).length;
  const worth = (section) => {
    const own = [...section.children].filter((part) => part.tagName !== "SECTION").map((part) => part.textContent);
    return count(own.join(" ")) + count(section.querySelector("h1, h2, h3, h4").textContent);
  };
  const ranked = [...page.querySelectorAll("section[id]:has(> :is(h1, h2, h3, h4))")].map((section) => [worth(section), section]);
  return ranked.sort((a, b) => b[0] - a[0])[0] ?? [];
};

// The search leads to the section that has the words, and shows its text, not what is folded or lists contents. It begins when
// the document is there: this must be there before.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const { htmlToText, makeSearchSummary, query } = Search;
  const parsed = (source) => {
    const page = new DOMParser().parseFromString(source, "text/html");
    const hidden = "#jb-print-docs-body, nav, .ln-launch, .ln-launch-note, .headerlink, details.hide, .prev-next-area";
    page.querySelectorAll(hidden).forEach((part) => part.remove());
    return asText(page);
  };
  Search.htmlToText = (source, anchor) => (
    htmlToText(parsed(source).documentElement.outerHTML, anchor).replace(/\s+/g, " "));
  Search.makeSearchSummary = (source, words, anchor) => {
    const [worth, section] = anchor ? [] : sectionWith(parsed(source), [...words]);
    const summary = makeSearchSummary(source, words, section ? `#${CSS.escape(section.id)}` : anchor);
    const title = section?.querySelector("h2, h3, h4");
    if (title?.parentElement === section) {
      queueMicrotask(() => {  // when it stands below the link
        const hit = summary.parentElement, link = hit.querySelector("a");
        link.hash = section.id;
        link.append(` \u203a ${title.textContent}`);
        hit.dataset.worth = worth;
        const hits = [...hit.parentElement.children];
        const less = hits.slice(0, hits.indexOf(hit)).find((other) => Number(other.dataset.worth) < worth);
        if (less) less.before(hit);  // the best section first
      });
    }
    return summary;
  };
  Search.query = (words) => query(words.replace(/\w+/g, (word) => SAME[word.toLowerCase()] ?? word));
});

// Paper is light: printed from the dark theme, a page would be grey on white and its code white on white.
addEventListener("beforeprint", () => {
  const { theme } = document.documentElement.dataset;
  document.documentElement.dataset.theme = "light";
  addEventListener("afterprint", () => { document.documentElement.dataset.theme = theme; }, { once: true });
});

// A formula that scrolls on the screen would be cut off on paper: there it is made smaller. The layout of the paper is not known
// yet; of A4 and of letter paper this much is left within an aside.
const PAPER = 600;
addEventListener("beforeprint", () => {
  document.querySelectorAll('mjx-container[display="true"]').forEach((formula) => {
    const wide = formula.querySelector("mjx-math").getBoundingClientRect().width;  // what is read aloud is as wide as the column
    if (wide <= PAPER) return;
    const before = formula.style.fontSize;
    formula.style.fontSize = `${parseFloat(getComputedStyle(formula).fontSize) * PAPER / wide}px`;
    addEventListener("afterprint", () => { formula.style.fontSize = before; }, { once: true });
  });
});
