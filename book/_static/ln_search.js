// The site's search: sections, asides, exercises, terms and functions that have the words. Runs on the search page only, after
// ln_sections.js (made by ln_search.py) and ln.js.
const lnSearch = (() => {
  // What readers type, as a stem: what the book says
  const SAME = { bf16: "bfloat16", fp16: "float16", fp32: "float32", fp64: "float64", eps: "epsilon|ε", epsilon: "eps|ε", rmsnorm: "rms norm",
    layernorm: "layer norm", groupnorm: "group norm", reduction: "mean|sum", gradcheck: "gradient check|gradcheck", grad: "gradient",
    gpu: "gpu|cuda", jacobian: "jacobian", speed: "time|fast", atomic: "atomic", race: "race", var: "variance", std: "standard deviation",
    nan: "nan", memory: "memory|bytes", bug: "bug|wrong" };
  const IDLE = new Set("a an and are as at be by can do does for from how i in is it its my of on or that the there this to what when where which why with".split(" "));
  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
  const stem = (word) => (word.length > 4 ? word.replace(/(ations?|ing|ed|s)$/, "") : word);
  const pattern = (word) => {
    const own = stem(word.toLowerCase()), tail = own.replace(/^\w+\.(?=\w)/, "");  // a library's name may be left out
    const forms = [escaped(own), tail !== own && escaped(tail), SAME[own] ?? SAME[word.toLowerCase()]].filter(Boolean);
    return new RegExp(`(?<![\\p{L}\\d_])(?:${forms.join("|")})`, "giu");
  };

  const text = (raw) => raw.replace(/\\\((.*?)\\\)/g, (all, tex) => plain(tex).trim());
  const headed = (place, head) => (/^ex-/.test(place) ? `Exercise: ${head.trim().replace(/^\((.*)\)$/, "$1")}`
    : /^aside-/.test(place) ? `Aside: ${head}` : /^[a-z]+\.[\w.]+$/i.test(place) ? place : head);  // of a function, its name
  const sections = Object.entries(lnSections).flatMap(([page, [title, ...parts]]) => parts.map(([place, head, body], i) => ({
    href: `${page}.html#${place}`, page: title, title: i ? headed(place, text(head)) : "", text: text(body), weight: /\/api/.test(page) ? 0.3 : /^(Takeaways|Questions|Exercises|Further reading)$/.test(head) ? 0.6 : 1 })));
  const average = sections.reduce((sum, { text }) => sum + text.length, 0) / sections.length;

  /** The sections with all the words, or with most, the best first: [{section, score, has: the words that were found}, ...]. */
  const find = (query) => {
    const typed = query.trim().split(/\s+/).map((word) => word.replace(/^\W+|\W+$/g, "")).filter(Boolean);
    const words = typed.filter((word) => !IDLE.has(word.toLowerCase()));
    const patterns = (words.length ? words : typed).map(pattern);
    const phrase = patterns.length > 1 && new RegExp(patterns.map(({ source }) => source.replace(/^\(\?<!.*?\]\)/, "")).join("\\p{L}*\\W+"), "iu");
    const counts = patterns.map((word) => sections.map((s) => [(s.text.match(word) ?? []).length, Number(s.title.search(word) >= 0)]));
    const hits = counts.map((all) => all.filter(([text, title]) => text + title).length);
    const ranked = sections.map((section, i) => {
      const long = 0.4 + 0.6 * section.text.length / average, has = patterns.filter((word, w) => counts[w][i][0] + counts[w][i][1]);
      const score = counts.reduce((sum, all, w) => {
        const [often, title] = all[i];
        return sum + Math.log(1 + sections.length / (hits[w] || 1)) * (often / (often + long) + title);
      }, 0);
      const bonus = phrase && (phrase.test(section.title) ? 2 : phrase.test(section.text) ? 1.5 : 1) || 1;
      return { section, has, score: score * bonus * section.weight };
    });
    const most = Math.max(1, ...ranked.map(({ has }) => has.length));
    return ranked.filter(({ has }) => has.length === most).sort((a, b) => b.score - a.score);
  };

  // What is shown: where each is, and the words in their place
  const make = (tag, className, ...inside) => {
    const node = Object.assign(document.createElement(tag), { className });
    node.append(...inside);
    return node;
  };
  const marked = (words, has) => {
    const any = new RegExp(has.map(({ source }) => `${source}[\\p{L}\\d]*`).join("|"), "giu"), parts = [];
    let from = 0;
    for (const { 0: found, index } of words.matchAll(any)) {
      parts.push(words.slice(from, index), make("span", "highlighted", found));
      from = index + found.length;
    }
    return [...parts, words.slice(from)];
  };
  const shown = ({ section, has }) => {
    const first = Math.max(0, Math.min(...has.map((word) => section.text.search(word)).filter((at) => at >= 0), Infinity));
    const from = first < 100 || first === Infinity ? 0 : section.text.indexOf(" ", first - 100) + 1;
    const words = `${from ? "\u2026 " : ""}${section.text.slice(from, from + 260).replace(/ \S*$/, "")}`;
    const link = make("a", "", [section.page, section.title].filter(Boolean).join(" \u203a "));
    link.href = section.href;
    // Sphinx's own script marks these words on the page that is opened.
    const found = () => has.map((word) => section.text.match(word)?.[0].toLowerCase()).filter(Boolean).join(" ");
    link.addEventListener("click", () => { try { localStorage.setItem("sphinx_highlight_terms", found()); } catch { /* not marked */ } });
    return make("li", "", link, make("p", "context", ...marked(words, has)));
  };
  const MOST = 30, out = document.getElementById("search-results"), field = document.querySelector("main input[name=q]");
  const list = make("ul", "search"), status = make("p", "search-summary");
  status.setAttribute("role", "status");
  out.append(status, list);
  const search = (query) => {
    const found = query.trim() ? find(query) : [];
    list.replaceChildren(...found.slice(0, MOST).map(shown));
    const more = found.length > MOST ? `, of which the first ${MOST} are shown` : "";
    status.textContent = !query.trim() ? "" : found.length ? `Found in ${found.length} places${more}.` : "Nothing found. Try another word, or fewer.";
  };
  let typing;
  field.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => search(field.value), 150); });
  field.form.addEventListener("submit", (event) => {
    event.preventDefault();
    history.replaceState(null, "", `?q=${encodeURIComponent(field.value)}`);
    search(field.value);
  });
  field.value = new URLSearchParams(location.search).get("q") ?? "";
  search(field.value);
  return { find };
})();
