// Live cells, the part that every page loads: a button at each exercise, a reader's earlier answers, marks at what
// passed. All else is loaded when a button is pressed. Answers are kept in this browser and never leave it.
window.lnLive = (() => {
  const here = document.currentScript, book = "layer-norm-backwards:";
  const code = new URL(".", here.src).href, version = new URL(here.src).search;  // a new release is a new address
  const page = location.pathname.split("/").pop().replace(/\.html$/, "");
  const make = (tag, properties = {}, ...inside) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...inside);
    return node;
  };
  const EDIT = "Edit and run here";
  const button = (text, press) => make("button", { type: "button", className: "ln-button", onclick: press }, text);

  // What is kept
  const recall = (key) => { try { return JSON.parse(localStorage.getItem(book + key)); } catch { return null; } };
  const keep = (key, value) => {
    try {
      if (value) localStorage.setItem(book + key, JSON.stringify(value));
      else localStorage.removeItem(book + key);
      offer();
      return true;
    } catch { return false; }
  };
  const keys = () => {
    try { return Object.keys(localStorage).filter((key) => key.startsWith(book)); } catch { return []; }
  };

  // The cells. An exercise's answer of an earlier visit stands in its cell.
  const cells = [...document.querySelectorAll("div.cell:has(.cell_input pre)")].map((box, number) => {
    const exercise = box.matches(".tag_exercise") ? box.closest(".exercise") : null;
    const pre = box.querySelector(".cell_input pre");
    return { box, pre, exercise: exercise?.id, stub: pre.textContent.replace(/\n$/, ""), book: [...pre.childNodes],
      timed: box.matches(".tag_skip-execution"), bookOutput: box.querySelector("details.below-input, .cell_output"),
      name: exercise?.querySelector(".caption-number")?.textContent.trim().toLowerCase() ?? `cell ${number + 1}`,
      title: exercise?.querySelector(".admonition-title").textContent.trim() };
  });
  const say = (cell, text) => { cell.status.textContent = text; };
  const bar = (cell) => {
    if (cell.bar) return;
    cell.status = make("span", { className: "ln-live-status", role: "status" });
    cell.open = button(EDIT, () => open([cell]));
    cell.bar = make("div", { className: "ln-live-bar", role: "group", ariaLabel: cell.name }, cell.open, cell.status);
    (cell.box.querySelector("details.above-input") ?? cell.box.querySelector(".cell_input")).after(cell.bar);
    if (cell.exercise) stand(cell);
  };
  const stand = (cell) => {
    const answer = recall(cell.exercise);
    if (answer?.text === cell.text) return;
    cell.text = answer?.text;
    cell.pre.replaceChildren(...(answer ? [answer.text] : cell.book));
    cell.open.textContent = answer ? "Go on" : EDIT;
    if (cell.bookOutput) cell.bookOutput.hidden = answer;
    const since = answer?.stub === cell.stub ? "" : " The book's cell has changed since.";
    say(cell, answer ? `Your answer of an earlier visit.${since}` : "");
  };

  // What passed: {page: {of: number of its exercises, ids: [...]}}. An exercise that stands on two pages counts on both:
  // each takes over what the others have of its own.
  const passed = (cell) => {
    const all = recall("passed") ?? {}, own = cells.flatMap((c) => c.exercise ?? []), old = all[page]?.ids ?? [];
    const everywhere = Object.values(all).flatMap(({ ids }) => ids).concat(cell?.exercise ?? []);
    const ids = [...new Set([...old, ...own.filter((id) => everywhere.includes(id))])];
    if (ids.length > old.length) keep("passed", { ...all, [page]: { of: own.length, ids } });
    mark();
  };
  const mark = () => {
    const all = recall("passed") ?? {};
    const set = (place, text, ariaLabel) => {
      place?.append(" ", make("span", { className: "ln-live-mark", role: "img", ariaLabel }, text));
    };
    document.querySelectorAll(".ln-live-mark").forEach((old) => old.remove());
    for (const link of document.querySelectorAll(".bd-docs-nav a.internal, .page-toc a[href='#exercises']")) {
      const { ids, of } = all[link.pathname.split("/").pop().replace(/\.html$/, "")] ?? {};
      if (ids) set(link, `\u2713 ${ids.length}/${of}`, `${ids.length} of ${of} exercises passed`);
    }
    for (const id of all[page]?.ids ?? []) {
      set(document.getElementById(id)?.querySelector(".admonition-title"), "\u2713 passed", "passed");
    }
    const progress = document.querySelector(".ln-progress");
    if (progress) {
      const count = new Set(Object.values(all).flatMap(({ ids }) => ids)).size;
      progress.hidden = !count;
      progress.textContent = progress.textContent.replace(/\d+/, count);
    }
  };

  // The rest, when it is asked for
  const script = (name) => new Promise((done, fail) => document.head.append(make("script",
    { src: code + name + version, async: false, onload: done,
      onerror: () => fail(Error(`${name} could not be loaded`)) })));
  let rest;
  const parts = [..."disk" in here.dataset ? ["disk.js"] : [], "python.js", "cells.js"];
  const load = () => (rest ??= Promise.all(parts.map(script)));
  const lost = (error, place) => {
    rest = null;  // the next press tries again
    place.textContent = `${error.message}. Is the connection gone? Press again, or download the notebook above.`;
  };
  const open = async (chosen) => {
    try {
      chosen.forEach(bar);
      await load();
      await lnLive.edit(chosen);
    } catch (error) {
      lost(error, chosen[0].status);
    }
  };

  // The row under the page's title
  const row = document.querySelector(".ln-launch");
  const all = button(EDIT, () => {
    all.remove();
    open(cells).then(() => { note.textContent = `All ${cells.length} cells of this page can be edited and run.`; });
  });
  const tryNow = () => button("Try an exercise now", () => {  // {try-exercise}
    const cell = cells.find((c) => c.exercise);
    cell.box.closest(".exercise").scrollIntoView({ block: "nearest" });
    if (!cell.editor) open([cell]);
  });
  const note = make("span", { className: "ln-live-status", role: "status" });
  const download = button("Download my answers", () => {
    note.textContent = "";
    load().then(() => lnLive.download()).catch((error) => lost(error, note));
  });
  const forget = button("Forget my answers", () => {
    if (!confirm("Forget all your answers, on all pages of the book?")) return;
    keys().forEach((key) => localStorage.removeItem(key));
    location.reload();
  });
  const answers = make("details", { className: "ln-answers" }, make("summary", { className: "ln-button" }, "My answers"), download, forget);
  const offer = () => { answers.hidden = !keys().length; };

  // An answer in an address ("Copy a link"): shown, not run.
  const take = () => {
    const [, id, packed] = /^#(ex-[\w-]+)=([\w-]+)$/.exec(location.hash) ?? [];
    const cell = packed && cells.find((c) => c.exercise === id);
    if (!cell?.bar) return;
    history.replaceState(null, "", `#${id}`);
    document.getElementById(id).scrollIntoView();
    const code = Uint8Array.from(atob(packed.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt());
    const answer = { text: new TextDecoder().decode(code), stub: cell.stub, title: cell.title };
    const show = () => {
      keep(id, answer);
      refresh();
      say(cell, "This came with the link.");
    };
    if (!recall(id)) return show();
    const swap = button("Take the link's answer", () => { swap.remove(); show(); });
    cell.status.before(swap);
    say(cell, "Yours stands here.");
  };
  const able = window.Worker && window.WebAssembly;
  if (row && cells.length && (location.protocol !== "file:" || "disk" in here.dataset)) {
    if (!able) {
      row.after(make("p", { className: "ln-launch-note" }, "This browser cannot run Python."));
    } else {
      cells.forEach((cell) => cell.exercise && bar(cell));
      if ("whole" in here.dataset) row.append(all);
      else if (row.closest(".ln-hero")) row.children[0].after(" ", tryNow());
      row.append(answers, note);
    }
  }
  // Another tab may change what is kept, and a page that is gone back to stands as it was left.
  const refresh = () => {
    offer();
    passed();
    for (const cell of cells) if (cell.exercise && cell.bar) (cell.editor ? lnLive.renew : stand)(cell);
  };
  addEventListener("storage", ({ key }) => { if (!key || key.startsWith(book)) refresh(); });
  addEventListener("pageshow", ({ persisted }) => { if (persisted) refresh(); });

  offer();
  passed();
  try { take(); } catch { /* cut */ }
  const lite = new URL(here.dataset.lite, location).href;
  return { cells, code, version, lite, make, button, say, recall, keep, keys, passed, script };
})();
