// The worker of live cells: Pyodide, the library, ln_needs.py and ln_run.py. Everything comes from the site itself.
// in:  {start: {lite, code, version}}, then {run: {cells, index, label, least}, id}, one after another
// out: {told: "loading", data: {what, bytes, of}}, "ready", "failed"; of a run: {told, id, data}, at last "done"
const tell = (told, data, id) => postMessage({ told, data, id });
const plain = self.fetch.bind(self);
let ready, python, site, where, what = "Python", bytes = 0, of = 0, there = new Set(["numpy", "lnlib"]);

// Pyodide fetches its files by itself: this counts their bytes, and says what is missing. (Pyodide waits for ever.)
const sizes = (url) => site?.bytes[url.split("/").pop()] ?? 0;
self.fetch = async (request, options) => {
  const url = String(request.url ?? request);
  const reply = await plain(request, options).catch((error) => ({ statusText: error.message }));
  if (!reply.ok) tell("failed", `${url.split("/").pop()}: ${reply.status ?? ""} ${reply.statusText}`);
  of += sizes(url);
  // Handed the reply itself, a browser keeps what it compiled for the next visit.
  if (url.endsWith(".wasm")) {
    bytes += sizes(url);
    return reply;
  }
  const count = new TransformStream({ transform(chunk, stream) {
    bytes += chunk.byteLength;
    tell("loading", { what, bytes, of: Math.max(bytes, of) });
    stream.enqueue(chunk);
  } });
  return new Response(reply.body.pipeThrough(count), { status: reply.status, headers: reply.headers });
};
const file = async (path) => new Uint8Array(await (await fetch(where.lite + path)).arrayBuffer());
const wheels = (name) => site.wheels[name].map((path) => file(path));
const unpack = async (files) => { for (const wheel of files) python.unpackArchive(await wheel, "wheel"); };

// What took longest is kept in the browser's cache, for the next page: the memory of Python when it has started, and
// what it compiled. Without such a cache (a page from disk, one without https) all goes on without.
const shelf = (async () => self.caches?.open("layer-norm-backwards"))().catch(() => undefined);
const fresh = {};  // name: what is to be kept
const recall = async (name) => {
  const found = await (await shelf)?.match(where.lite + name);
  return found?.headers.get("version") === site.python ? new Uint8Array(await found.arrayBuffer()) : undefined;
};
const keep = async () => {
  fresh.compiled = python.pyimport("ln_kept").keep()?.toJs();
  for (const [name, data] of Object.entries(fresh)) {
    delete fresh[name];
    const reply = data && new Response(data, { headers: { version: site.python } });
    if (reply) await (await shelf)?.put(where.lite + name, reply).catch(() => {});  // no room: the next page waits again
  }
};

async function begin(indexURL) {
  const memory = await recall("started");
  if (memory) return loadPyodide({ indexURL, packages: ["numpy"], _loadSnapshot: memory });
  const made = await loadPyodide({ indexURL, _makeSnapshot: true });
  if (await shelf) fresh.started = made.makeMemorySnapshot();  // it could not hold the libraries of packages
  await made.loadPackage("numpy", { messageCallback: () => {} });
  return made;
}

async function start(told) {
  where = told;
  const pyodide = where.lite + "static/pyodide/", list = fetch(where.lite + "live.json");
  importScripts(pyodide + "pyodide.js");
  site = await (await list).json();
  const files = wheels("lnlib"), compiled = recall("compiled");
  const codes = ["ln_kept.py", "ln_needs.py", "ln_run.py"].map(async (name) => [
    name, await (await fetch(where.code + name + where.version)).text()]);
  python = await begin(pyodide);
  for (const [name, code] of await Promise.all(codes)) python.FS.writeFile(`/home/pyodide/${name}`, code);
  // A memory that was kept would draw the same numbers on every page.
  python.runPython(`import random, sys; random.seed(); sys.path.insert(0, "/home/pyodide")`);
  python.pyimport("ln_kept").begin(python.toPy(await compiled));
  await unpack(files);
  // Where the notebooks lie in the repository, so that they find what they read.
  python.FS.mkdirTree("/home/pyodide/page/book");
  python.FS.chdir("/home/pyodide/page/book");
  python.runPython(`import ln_needs, ln_run`);
  python.pyimport("ln_run").settle(python.toPy(site.packages));
  tell("ready");
}

async function load(names, id) {
  const fresh = names.filter((name) => !there.has(name));
  const titles = { matplotlib: "Matplotlib", sympy: "SymPy", data: "data" };
  what = fresh.map((name) => titles[name] ?? name).join(" and ");
  [bytes, of] = [0, 0];
  if (!fresh.length) return;
  tell("say", `Loading ${what}\u2026`, id);
  for (const name of fresh) {
    if (name === "data") {
      for (const path of site.data) {
        python.FS.mkdirTree(`/home/pyodide/page/${path}`.replace(/\/[^/]*$/, ""));
        python.FS.writeFile(`/home/pyodide/page/${path}`, await file(`files/${path}`));
      }
    } else if (name in site.wheels) await unpack(wheels(name));
    else await python.loadPackage(name, { messageCallback: () => {} });
    there.add(name);
  }
  python.runPython("import importlib; importlib.invalidate_caches()");
}

async function run({ cells, index, label, least }, id) {
  const needs = python.pyimport("ln_needs"), runner = python.pyimport("ln_run");
  const [steps, alone] = needs.above(cells, index, least), codes = steps.toJs().map(([, code]) => code);
  const post = (told, ...data) => tell(told, data.map((d) => d?.toJs?.() ?? d), id);
  let ok, wanted = [...codes, cells[index]].some((code) => /results|_data/.test(code)) ? ["data"] : [];
  do {  // again, where a package was missing: most cells need none, and each is megabytes
    await load(wanted, id);
    tell("say", "Running\u2026", id);
    tell("clear", null, id);
    ok = await runner.run(steps, index, cells[index], label, alone, post);
    wanted = runner.missing().toJs().filter((name) => !there.has(name));
  } while (wanted.length);
  tell("done", { ok, above: alone ? codes.join("\n") : undefined }, id);
  setTimeout(keep, 500);
}

onmessage = ({ data }) => {
  if (data.start) ready = start(data.start).catch((error) => { tell("failed", error.message); throw error; });
  else {
    const failed = (error) => tell("done", { failed: error.message }, data.id);
    ready = ready.then(() => run(data.run, data.id)).catch(failed);
  }
};
