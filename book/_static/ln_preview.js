// What a link leads to, beside it, while the pointer or the focus rests on it: terms, formulas, figures,
// works that are cited, entries of the API.
// ln_previews.py gathers them in _static/ln_previews.js, which is loaded when the first is wanted.
const root = new URL(document.documentElement.dataset.content_root || "./", location.href).href;
const tip = Object.assign(document.createElement("div"), { className: "ln-preview", id: "ln-preview", hidden: true });
tip.setAttribute("role", "tooltip");
let loading, link, timer;

const load = () => loading ||= new Promise((done, failed) => {
  const script = Object.assign(document.createElement("script"), { src: `${root}_static/ln_previews.js`, onload: done, onerror: failed });
  document.head.append(script);
});

function hide() {
  clearTimeout(timer);
  link?.removeAttribute("aria-describedby");
  link = undefined;
  tip.hidden = true;
}

// Below the link, or above it where there is no room below; within the window's width.
function place() {
  const at = link.getBoundingClientRect(), { offsetWidth: width, offsetHeight: height } = tip;
  const below = at.bottom + height + 12 < innerHeight || at.top < height + 12;
  tip.style.left = `${scrollX + Math.max(8, Math.min(at.left, document.documentElement.clientWidth - width - 8))}px`;
  tip.style.top = `${scrollY + (below ? at.bottom + 6 : at.top - height - 6)}px`;
}

async function show(wanted) {
  await load();
  const html = LN_PREVIEWS[wanted.href.slice(root.length)];
  if (!html || link !== wanted) return;
  tip.innerHTML = html;
  tip.querySelectorAll("[id]").forEach((part) => part.removeAttribute("id"));
  tip.querySelectorAll("img, a, source").forEach((part) => ["src", "href", "srcset"].forEach((name) => {
    if (part.hasAttribute(name)) part.setAttribute(name, new URL(part.getAttribute(name), root).href);
  }));
  document.body.append(tip);
  tip.hidden = false;
  await window.MathJax?.typesetPromise?.([tip]);
  if (link !== wanted) return;
  place();
  link.setAttribute("aria-describedby", tip.id);
}

function rest(event) {
  if (tip.contains(event.target)) clearTimeout(timer);
  const wanted = event.target.closest?.("article a.reference.internal[href*='#']");
  if (!wanted || !wanted.href.startsWith(root)) return;
  if (wanted === link) return clearTimeout(timer);
  hide();
  link = wanted;
  timer = setTimeout(() => show(wanted), event.type === "focusin" ? 0 : 250);
}

// The pointer may go from the link to its preview, whose own links can be followed.
function leave() {
  clearTimeout(timer);
  timer = setTimeout(hide, 200);
}

if (matchMedia("(hover: hover)").matches) {
  document.addEventListener("mouseover", rest);
  document.addEventListener("mouseout", (event) => { if (event.target.closest?.("article a, #ln-preview")) leave(); });
}
document.addEventListener("focusin", (event) => { if (event.target.matches(":focus-visible")) rest(event); });
document.addEventListener("focusout", leave);
addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
addEventListener("click", hide);
addEventListener("beforeprint", hide);
