// Live cells: editing, running and showing, for the cells that a reader opened. Loaded when a button is pressed.
(() => {
  const { cells, make, button, say, recall, keep, passed, script, python } = lnLive;

  // A plain text area, where the editor cannot be loaded
  const plainEditor = (parent, text, { label, description, run, change }) => {
    const area = make("textarea", { className: "ln-live-plain", value: text, spellcheck: false, ariaLabel: label,
      rows: text.split("\n").length + 1, oninput: () => change(area.value) });
    area.setAttribute("aria-describedby", description);
    area.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.shiftKey || event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      run();
    });
    parent.append(area);
    return { set: (code) => { area.value = code; change(code); }, focus: () => area.focus(), blame: () => {} };
  };

  // Editing
  const changed = (cell, text) => {
    cell.text = text;
    cell.again.hidden = text === cell.stub;
    cell.share.hidden = cell.again.hidden || !cell.exercise;
    cell.undo.hidden = true;
    if (!cell.exercise || text === cell.kept) return;
    if (cell.bookOutput) cell.bookOutput.hidden = !cell.again.hidden;  // it is about what stood here
    const answer = { ...recall(cell.exercise), text, stub: cell.stub, title: cell.title };
    if (keep(cell.exercise, text === cell.stub ? null : answer)) cell.kept = text;
    else say(cell, "This browser keeps no answers: copy yours before you leave.");
  };
  const kept = (cell) => (cell.exercise && recall(cell.exercise)?.text) ?? cell.stub;
  /** Take the answer that another page keeps now: it began with what stands here, unless that could not be kept. */
  lnLive.renew = (cell) => {
    const text = kept(cell);
    if (text === cell.kept) return;
    const own = cell.text !== cell.kept;
    cell.kept = text;
    if (own) return say(cell, "This answer was changed on another page. Yours stands here; the next key keeps it instead.");
    cell.editor.set(text);
    say(cell, "Changed on another page: what you wrote there stands here.");
  };
  const startAgain = (cell) => {
    const before = cell.text;
    cell.editor.set(cell.stub);
    cell.undo.hidden = false;
    cell.undo.onclick = () => { cell.editor.set(before); cell.editor.focus(); };
    cell.undo.focus();  // what hides loses the focus
    cell.out.hidden = true;
    cell.next.replaceChildren();
    if (cell.bookOutput) cell.bookOutput.hidden = false;
    say(cell, "As in the book again.");
  };
  const check = (cell) => cell.stub.split("\n").at(-1);
  const prepare = (cell) => {
    const place = make("div", { className: "ln-live-editor highlight" });
    // Sphinx takes every / for its search that is typed outside of a form's field.
    place.addEventListener("keydown", (event) => event.stopPropagation());
    cell.run = Object.assign(button("Run", () => run(cell)), { title: "Shift+Enter" });
    cell.stop = button("Stop", () => python.stop());
    cell.again = button("Start again", () => startAgain(cell));
    cell.undo = button("Undo");
    cell.share = button("Copy a link", () => {
      const bytes = String.fromCharCode(...new TextEncoder().encode(cell.text));
      const packed = btoa(bytes).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
      const address = `${location.href.split("#")[0]}#${cell.exercise}=${packed}`;
      navigator.clipboard.writeText(address).then(() => say(cell, "A link with this answer is in the clipboard."),
        () => { location.hash = address.split("#")[1]; say(cell, "The address of this page now holds this answer."); });
    });
    // An exercise ends with its check; who pastes an answer over everything loses it.
    cell.back = button("Put the check back", () => {
      cell.editor.set(`${cell.text.trimEnd()}\n\n${check(cell)}`);
      cell.run.focus();
      run(cell);
    });
    cell.progress = make("progress", { hidden: true, ariaLabel: "Loading Python" });
    cell.far = make("span", { className: "ln-live-far", ariaHidden: "true" });
    cell.next = make("span", { className: "ln-live-next" });
    const keys = make("span", { className: "ln-live-keys", ariaHidden: "true" }, "Shift+Enter: run. Tab: leave the editor.");
    cell.out = make("div", { className: "ln-live-output cell_output", role: "region", hidden: true,
      ariaLabel: `Output of ${cell.name}` });
    cell.stop.hidden = cell.undo.hidden = cell.back.hidden = true;
    cell.text = cell.kept = kept(cell);
    cell.again.hidden = cell.text === cell.stub;
    cell.share.hidden = cell.again.hidden || !cell.exercise;
    cell.status.before(cell.run, cell.again, cell.undo, cell.share, cell.stop, cell.back, cell.progress, cell.far);
    cell.bar.append(keys, cell.next);
    cell.open.remove();
    cell.bar.after(cell.out);  // what a run shows is next to its button
    cell.pre.closest(".highlight").replaceWith(place);
    cell.editor = (window.lnEditor?.open ?? plainEditor)(place, cell.text, {
      label: `Code of ${cell.name}`, description: "ln-live-keys",
      run: () => run(cell), change: (text) => changed(cell, text) });
  };
  /** Open the cells for editing. Python is loaded while the reader types. */
  lnLive.edit = async (chosen) => {
    python.start(() => {});
    if (!window.lnEditor) await script("editor.js").catch(() => {});
    const fresh = chosen.filter((cell) => !cell.editor);
    document.body.classList.add("ln-live-open");
    // An editor that opens has all that is shown laid out. Where there are many, little is shown meanwhile.
    const { style } = document.querySelector("article"), top = scrollY;
    if (fresh.length > 1) style.display = "none";
    try {
      fresh.forEach(prepare);
    } finally {
      style.display = "";
    }
    if (fresh.length > 1) scrollTo({ top, behavior: "instant" });
    // An editor in a folded cell cannot take the keyboard.
    (fresh.find((cell) => !cell.box.querySelector("details:not([open])")) ?? fresh[0])?.editor.focus();
    await load(chosen[0]);
  };

  // Loading Python: how far it is, at the cell that asked for it
  const megabytes = (bytes) => (bytes / 1e6).toFixed(1);
  const arrived = (cell) => {
    clearTimeout(cell.waits);
    cell.progress.hidden = true;
    cell.far.textContent = "";
  };
  const load = (cell) => {
    const busy = !python.ready();
    if (busy) say(cell, "Loading Python\u2026");
    return python.start((told, how) => {
      if (told !== "loading") {
        arrived(cell);
        if (told === "failed") say(cell, how);
        else if (told === "ready" && cell.stop.hidden && busy) say(cell, "Python is ready.");
        return;
      }
      cell.progress.hidden = false;
      cell.far.textContent = `${how.what}: ${megabytes(how.bytes)} of ${megabytes(how.of)} MB`;
      [cell.progress.value, cell.progress.max] = [how.bytes, Math.max(how.of, 1)];
      clearTimeout(cell.waits);
      if (how.bytes >= how.of) {  // all is here, unless more is asked for at once
        cell.waits = setTimeout(() => { arrived(cell); say(cell, `Starting ${how.what}\u2026`); }, 300);
      }
    });
  };

  // Running
  const run = async (cell) => {
    if (!cell.stop.hidden) return;
    cell.stop.hidden = false;
    cell.back.hidden = true;
    cell.next.replaceChildren();
    cell.run.setAttribute("aria-disabled", "true");
    hear.clear(cell);
    await load(cell);
    if (python.ready()) hear.say(cell, "Running\u2026");
    // Neither other exercises nor cells that only measure are run for this one.
    const codes = cells.map((c) => (c !== cell && (c.exercise || c.timed) ? "" : c.text ?? c.stub));
    const id = cells.indexOf(cell);
    python.run({ id, run: { cells: codes, index: id, label: cell.name, least: !!cell.exercise },
      hear: (told, data) => hear[told](cell, data), end: (how) => end(cell, how) });
  };
  const verdict = ({ ok, stopped, failed }, cell) => {
    if (failed) return failed;
    if (stopped) return "Stopped. The next run starts Python anew.";
    const [, good, of, written] = cell.report ?? [];
    const found = good === of ? `${good} of ${of} checks passed.` : written ? `Check ${good + 1} of ${of} failed.` : "Not written yet.";
    if (!ok) return cell.report ? `${found} Then it ended with an error.` : "It ended with an error, shown below.";
    if (cell.report) return found;
    return cell.exercise ? `Nothing was checked: the line ${check(cell)} was not run.` : "Done.";
  };
  /** After a right answer: its solution, and the next exercise or, after the last, the next page. */
  const lead = (cell) => {
    const box = cell.box.closest(".exercise"), solution = box.nextElementSibling?.closest(".solution");
    const own = cells.filter((c) => c.exercise), next = own[own.indexOf(cell) + 1];
    const compare = button("Compare with the solution", () => {
      if (solution.matches(".toggle-hidden")) solution.querySelector(".toggle-button").click();
      solution.scrollIntoView({ block: "start" });
    });
    const page = document.querySelector("a.right-next"), title = next?.title ?? page?.querySelector("p.prev-next-title").textContent;
    const on = make("a", { href: next ? `#${next.exercise}` : page?.href }, `Next: ${title}`);
    // {try-exercise}: on another page than its chapter's, a link in its text says where it belongs.
    const home = box.querySelector("p a.internal");
    cell.next.replaceChildren(...(solution ? [compare, on] : home ? ["Why is it right? ", home.cloneNode(true)] : []));
  };
  const end = (cell, how) => {
    clearInterval(cell.clock);
    arrived(cell);
    if (document.activeElement === cell.stop) cell.run.focus();
    cell.stop.hidden = true;
    cell.run.removeAttribute("aria-disabled");
    show(cell);
    say(cell, verdict(how, cell));
    cell.back.hidden = !(how.ok && cell.exercise && !cell.report);
    const [, good, of] = cell.report ?? [];
    if (cell.exercise && cell.report && good === of) {
      passed(cell);
      lead(cell);
    }
    const answer = cell.exercise && recall(cell.exercise);
    if (answer && how.above !== undefined) keep(cell.exercise, { ...answer, above: how.above });
  };

  // Showing, in the place of what the book shows; its figures stay, above or below, for comparison.
  const show = (cell) => {
    if (!cell.out.childElementCount) return;
    cell.out.hidden = false;
    if (cell.bookOutput && !cell.bookOutput.querySelector("figure, img")) cell.bookOutput.hidden = true;
  };
  const text = (cell, kind, ...inside) => {
    const pre = make("pre", { tabIndex: 0 }, ...inside);
    cell.out.append(make("div", { className: `output ${kind} highlight-myst-ansi notranslate` },
      make("div", { className: "highlight" }, pre)));
    show(cell);
    return pre;
  };
  const image = (cell, source) => make("img", { className: "dark-light ln-invert", src: source,
    alt: cell.bookOutput?.querySelector("img")?.alt ?? `Figure drawn by ${cell.name}` });
  // Of Markdown, what cells of the book show: paragraphs, lists, bold, code, links
  const markdown = (source) => source.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt()};`)
    .replace(/\*\*(.+?)\*\*/g, "<strong>$1</strong>").replace(/`(.+?)`/g, "<code>$1</code>")
    .replace(/\[([^\]]+)\]\((https?:[^)\s]+)\)/g, '<a href="$2">$1</a>').split(/\n\n+/)
    .map((block) => (/^- /.test(block)
      ? `<ul>${block.split(/^- /m).slice(1).map((item) => `<li>${item}</li>`).join("")}</ul>`
      : `<p>${block}</p>`)).join("");
  const faces = {
    "image/svg+xml": (cell, data) => image(cell, `data:image/svg+xml;charset=utf-8,${encodeURIComponent(data)}`),
    "image/png": (cell, data) => image(cell, `data:image/png;base64,${data}`),
    // Below a section's heading, the next is a third-level one.
    "text/html": (cell, data) => make("div", { className: "output", innerHTML: data.replaceAll("h4>", "h3>") }),
    "text/markdown": (cell, data) => make("div", { className: "output", innerHTML: markdown(data) }),
    "text/latex": (cell, data) => make("div", { className: "output tex2jax_process mathjax_process" }, data),
  };
  const hear = {
    say: (cell, said) => {
      say(cell, said);
      arrived(cell);
      clearInterval(cell.clock);
      if (!said.startsWith("Running")) return;
      const since = Date.now();
      cell.clock = setInterval(() => {
        const seconds = Math.floor((Date.now() - since) / 1000);
        if (seconds < 5) return;
        if (cell.status.textContent === said) say(cell, "Still running. Stop ends it.");
        cell.far.textContent = `${seconds} s`;
      }, 1000);
    },
    clear: (cell) => {
      cell.out.replaceChildren();
      cell.editor.blame(0);
      cell.report = null;
      delete cell.out.dataset.passed;
    },
    stream: (cell, [name, data]) => {
      const kind = name === "stderr" ? "stderr" : "stream";
      if (!cell.out.lastChild?.matches(`.${kind}`)) text(cell, kind);
      cell.out.lastChild.querySelector("pre").append(data);
    },
    report: (cell, report) => {
      if (cell.exercise && cell.exercise !== `ex-${report[0]}`) return;  // another's earns no mark
      cell.report = report;
      cell.out.dataset.passed = report[1] === report[2];
    },
    display: (cell, [kind, data]) => {
      if (!faces[kind]) return text(cell, "text_plain", data);
      const part = faces[kind](cell, data);
      cell.out.append(part);
      show(cell);
      if (typeof LnFigure === "object") LnFigure.again();
      if (kind === "text/latex") window.MathJax?.typesetPromise?.([part]);
    },
    error: (cell, [lines, line]) => {
      text(cell, "traceback", ...lines.map(([words, mine]) => (
        mine ? make("mark", { className: "ln-live-mine" }, words) : words)));
      if (line) cell.editor.blame(line);
    },
  };

  // All answers of the book, as a notebook
  lnLive.download = () => {
    const answers = lnLive.keys().map((key) => recall(key.slice(key.indexOf(":") + 1))).filter((a) => a?.title)
      .sort((a, b) => a.title.localeCompare(b.title, "en", { numeric: true }));
    const lines = (source) => source.split(/(?<=\n)/);
    const kernelspec = { display_name: "Python 3", language: "python", name: "python3" };
    const notebook = { nbformat: 4, nbformat_minor: 5, metadata: { kernelspec },
      cells: answers.flatMap(({ title, text, above }, i) => [
        { id: `title-${i}`, cell_type: "markdown", metadata: {}, source: [`### ${title}`] },
        { id: `answer-${i}`, cell_type: "code", metadata: {}, execution_count: null, outputs: [],
          source: lines(above ? `${above}\n\n${text}` : text) }]) };
    const file = URL.createObjectURL(new Blob([JSON.stringify(notebook, null, 1)]));
    make("a", { href: file, download: "my-answers.ipynb" }).click();
    setTimeout(() => URL.revokeObjectURL(file), 1000);
  };

  document.body.append(make("p", { id: "ln-live-keys", hidden: true,
    textContent: "Shift or Control and Enter runs the code. Tab leaves the editor. Control and ] indents." }));
})();
