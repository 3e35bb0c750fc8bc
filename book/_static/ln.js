// The theme lets the keyboard reach what scrolls sideways, and looks for it when the window changes its size.
// Opening a folded part shows more of it: look again.
document.addEventListener("click", (event) => {
  if (event.target.closest(".toggle-button, .admonition-title, summary")) window.dispatchEvent(new Event("resize"));
});

// A page that was found by the site's search may have the words in a folded aside. Sphinx's own script, which marks them,
// forgets them when the page is there: they are read before.
const terms = (localStorage.getItem("sphinx_highlight_terms") || "").split(/\s+/).filter(Boolean);
addEventListener("DOMContentLoaded", () => {
  const asides = terms.length ? document.querySelectorAll("details.ln-aside") : [];
  asides.forEach((aside) => { aside.open = terms.every((term) => aside.textContent.toLowerCase().includes(term)); });
});

// The search shows where a page has the words: in its text, not in its lists of contents or between a formula's signs.
addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const whole = Search.htmlToText;
  Search.htmlToText = (source, anchor) => {
    const page = new DOMParser().parseFromString(source, "text/html");
    page.querySelectorAll("#jb-print-docs-body, nav, .ln-launch, .prev-next-area").forEach((part) => part.remove());
    return whole(page.documentElement.outerHTML, anchor).replace(/\\[()[\]]/g, "").replace(/\s+/g, " ");
  };
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
    const wide = Math.max(...[...formula.children].map((part) => part.getBoundingClientRect().width));
    if (wide <= PAPER) return;
    const before = formula.style.fontSize;
    formula.style.fontSize = `${parseFloat(getComputedStyle(formula).fontSize) * PAPER / wide}px`;
    addEventListener("afterprint", () => { formula.style.fontSize = before; }, { once: true });
  });
});
