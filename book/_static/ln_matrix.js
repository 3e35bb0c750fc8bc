// A table of mistakes against tests (lnbook.figures.matrix) that one can explore: a name says what it is, chosen tests show
// what they leave, rows sort and filter. Without scripts, and on paper, it is a table.
document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".ln-matrix").forEach((box) => {
  const make = (tag, properties, ...inside) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...inside);
    return node;
  };
  const body = box.querySelector("tbody"), inOrder = [...body.rows], heads = [...box.querySelectorAll("thead th")];
  const finds = (row, test) => row.cells[test + 1].matches(".ln-found");
  const nameOf = (head) => head.textContent.replace(/ \(\d+\)$/, "");
  const chosen = new Set();
  const said = make("p", { className: "ln-matrix-said" });
  said.setAttribute("role", "status");
  const START = `${matchMedia("(hover: none)").matches ? "Touch" : "Point at"} a name to read what it stands for. `
    + "Press the names of tests to choose them: what they miss is marked.";
  const list = (words) => (words.length < 9 ? words.join(", ") : `${words.slice(0, 8).join(", ")} and ${words.length - 8} more`);

  const left = (tests) => inOrder.filter((row) => !tests.some((test) => finds(row, test)));
  const show = () => {
    const missed = chosen.size ? left([...chosen]) : [];
    inOrder.forEach((row) => {
      row.classList.toggle("ln-left", missed.includes(row));
      row.hidden = only.checked && chosen.size > 0 && !missed.includes(row);
    });
    heads.forEach((head, test) => head.firstElementChild.setAttribute("aria-pressed", chosen.has(test)));
    if (!chosen.size) said.textContent = START;
    else {
      const names = [...chosen].map((test) => nameOf(heads[test]));
      const [leave, find] = names.length > 1 ? ["together leave", "together find"] : ["leaves", "finds"];
      const what = missed.length ? `${leave} ${missed.length} of ${inOrder.length}: ${list(missed.map((row) => nameOf(row.cells[0])))}.`
        : `${find} all ${inOrder.length}.`;
      said.textContent = `${names.join(" and ")} ${what}`;
    }
  };
  const tell = (head) => {
    const [, count] = /\((\d+)\)$/.exec(head.textContent);
    said.textContent = `${nameOf(head)}: ${head.dataset.what || `finds ${count} of ${inOrder.length}`}`;
  };
  const namesItself = (head) => {
    head.addEventListener("pointerenter", () => tell(head));
    head.addEventListener("focusin", () => tell(head));
    head.addEventListener("pointerleave", show);
  };
  const press = (test) => {
    if (!chosen.delete(test)) chosen.add(test);
    show();
  };
  // The names of tests once more, for a finger.
  const tests = make("select", { className: "ln-matrix-list" }, ...["Choose a test", ...heads.map((head) => head.textContent)]
    .map((text) => make("option", {}, text)));
  tests.setAttribute("aria-label", "Choose a test");
  tests.onchange = () => {
    press(tests.selectedIndex - 1);
    tests.selectedIndex = 0;
  };
  heads.forEach((head, test) => {
    head.firstElementChild.replaceWith(make("button", { type: "button", onclick: () => press(test) }, head.textContent));
    namesItself(head);
  });
  inOrder.forEach((row) => {
    row.cells[0].tabIndex = 0;
    namesItself(row.cells[0]);
  });

  const sort = make("select", {}, ...["how often found", "name"].map((by) => make("option", {}, by)));
  sort.onchange = () => body.append(...(sort.selectedIndex === 0 ? inOrder
    : inOrder.toSorted((a, b) => nameOf(a.cells[0]).localeCompare(nameOf(b.cells[0])))));
  const only = make("input", { type: "checkbox", onchange: show });
  // The two tests that leave least together; of several pairs the one whose better test finds least alone.
  const pair = make("button", { type: "button", className: "ln-button", onclick: () => {
    const alone = heads.map((_, test) => left([test]).length);
    const pairs = heads.flatMap((_, a) => heads.slice(a + 1).map((__, b) => [a, a + 1 + b]));
    const worth = ([a, b]) => left([a, b]).length - Math.min(alone[a], alone[b]) / 1000;
    const best = pairs.reduce((one, other) => (worth(other) < worth(one) ? other : one));
    chosen.clear();
    best.forEach((test) => chosen.add(test));
    show();
  } }, "Which two tests miss least?");
  const none = make("button", { type: "button", className: "ln-button", onclick: () => { chosen.clear(); show(); } }, "Choose none");
  const sorting = make("label", {}, "Sort by ", sort), filter = make("label", {}, only, " only what the chosen miss");
  box.prepend(make("div", { className: "ln-matrix-bar" }, tests, pair, none, filter, sorting), said);
  show();
}));
