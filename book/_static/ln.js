// The theme lets the keyboard reach what scrolls sideways, and looks for it when the window changes its size.
// Opening a folded part shows more of it: look again.
document.addEventListener("click", (event) => {
  if (event.target.closest(".toggle-button, .admonition-title, summary")) window.dispatchEvent(new Event("resize"));
});

// Nor does it know formulas and tables of cells: of hundreds, the keyboard stops at those that scroll.
const stops = () => document.querySelectorAll("mjx-container, .ln-cells").forEach((box) => {
  box.tabIndex = box.matches(".ln-cells, [display]") && box.scrollWidth > box.clientWidth ? 0 : -1;
});
// On a phone reasons beside a formula come below its lines, and what wide spaces separate below each other; then it is made
// smaller, to 0.6 at most, before it scrolls. Columns of a table of cells come closer,
// then they are made a little smaller.
const canStack = (formula) => {
  const cell = formula.querySelector("mjx-mtd:nth-child(4)");
  // An empty column, but for a strut, lies before reasons.
  return cell ? cell.previousElementSibling.childElementCount < 2 : formula.querySelector('mjx-math > mjx-mstyle > :is([style*=" 1em"], [style*=" 2em"])');
};
// A line that is too long goes on a little further in than it began (ln.css): of code, and of what code prints, unless
// that is in columns. Each line is a block that ends with its line break, so it is copied as it is.
const inColumns = (text) => text.split("\n").filter((line) => /\S {2,}\S/.test(line)).length > 1;
const charactersOf = (pre) => (pre.clientWidth - 30) / (0.6 * parseFloat(getComputedStyle(pre).fontSize));
const hangs = (pre, room) => !pre.querySelector(".ln-line") && !(pre.closest(".output") && inColumns(pre.textContent))
  && Math.max(...pre.textContent.split("\n").map((line) => line.length)) >= room;
// An option of a command, which would break after a hyphen of its own.
const option = (text) => Object.assign(document.createElement("span"), { className: "ln-option", textContent: text });
const hang = (pre, room) => {
  const lines = [[]];
  for (const node of pre.childNodes) {
    if (node.nodeType !== Node.TEXT_NODE) lines.at(-1).push(node);
    else for (const part of node.data.split(/(?<=\n)/)) {
      lines.at(-1).push(...part.split(/(--\w[\w-]*)/).map((text, i) => (i % 2 ? option(text) : text)));
      if (part.endsWith("\n")) lines.push([]);
    }
  }
  pre.replaceChildren(...lines.filter((parts) => parts.length).map((parts) => {
    const line = Object.assign(document.createElement("span"), { className: "ln-line" });
    line.append(...parts);
    line.style.setProperty("--in", Math.min(16, line.textContent.search(/\S|$/)));
    // A first word for which the line is too short breaks; the browser would leave the line empty.
    if (line.textContent.search(/\S(?!\S)/) >= room) line.style.wordBreak = "break-all";
    return line;
  }));
};
const fit = () => {
  const listings = [...document.querySelectorAll("article .highlight pre")].map((pre) => [pre, charactersOf(pre)]);
  listings.forEach(([pre, room]) => { if (hangs(pre, room)) hang(pre, room); });
  const formulas = [...document.querySelectorAll("mjx-container[display]")];
  formulas.forEach((formula) => {
    formula.style.fontSize = formula.dataset.size ??= formula.style.fontSize;
    formula.classList.remove("ln-stacked");
  });
  const shares = () => formulas.map((formula) => formula.clientWidth / formula.querySelector("mjx-math").offsetWidth);
  shares().forEach((share, i) => { if (share < 1 && canStack(formulas[i])) formulas[i].classList.add("ln-stacked"); });
  shares().forEach((share, i) => {
    if (share < 1) formulas[i].style.fontSize = `calc(${formulas[i].dataset.size} * ${Math.max(0.6, share - 0.01)})`;
  });
  const tables = [...document.querySelectorAll(".ln-cells table")];
  tables.forEach((table) => { table.style.fontSize = ""; table.classList.remove("ln-close"); });
  const over = () => tables.map((table) => table.offsetWidth / table.parentElement.clientWidth - 1);
  over().forEach((share, i) => tables[i].classList.toggle("ln-close", share > 0.002));
  over().forEach((share, i) => {
    const table = tables[i];
    if (share > 0.002) table.style.fontSize = `${parseFloat(getComputedStyle(table).fontSize) * Math.max(0.82, 1 - 1.5 * share)}px`;
  });
  stops();
};
addEventListener("resize", fit);
addEventListener("load", async () => { await window.MathJax?.startup.promise; fit(); });

// The theme's sidebar, with the logo, stands outside of landmarks.
addEventListener("DOMContentLoaded", () => {
  const sidebar = document.querySelector(".bd-sidebar-primary");
  if (sidebar) Object.assign(sidebar, { role: "complementary", ariaLabel: "The book" });
});

// On a phone the contents lie over the page: they close when a section was chosen.
addEventListener("click", (event) => event.target.closest?.("dialog a[href^='#']")?.closest("dialog").close());

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
  const has = (part) => terms.every((term) => part.textContent.toLowerCase().includes(term));
  asides.forEach((aside) => { aside.open = has(aside); });
  const tab = terms.length && [...document.querySelectorAll(".sd-tab-content")].find(has);
  if (tab) tab.previousElementSibling.previousElementSibling.checked = true;  // after its button and its label
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

// What needs a server is hidden on a page that was opened from disk (ln.css).
if (location.protocol === "file:") document.documentElement.classList.add("ln-from-disk");

// Where a browser's CSS cannot reach inside a closed <details>, this opens the answers before printing.
if (!CSS.supports("selector(::details-content)")) {
  addEventListener("beforeprint", () => document.querySelectorAll("details.ln-answer, details.ln-aside").forEach((part) => {
    part.open = true;
  }));
}

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
