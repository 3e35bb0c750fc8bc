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
const unpack = async (name) => {
  for (const path of site.wheels[name]) python.unpackArchive(await file(path), "wheel");
};

async function start(told) {
  where = told;
  site = await (await fetch(where.lite + "live.json")).json();
  const pyodide = where.lite + "static/pyodide/";
  importScripts(pyodide + "pyodide.js");
  const [made, ...codes] = await Promise.all([loadPyodide({ indexURL: pyodide, packages: ["numpy"] }),
    ...["ln_needs.py", "ln_run.py"].map(async (name) => [
      name, await (await fetch(where.code + name + where.version)).text()])]);
  python = made;
  await unpack("lnlib");
  codes.forEach(([name, code]) => python.FS.writeFile(`/home/pyodide/${name}`, code));
  // Where the notebooks lie in the repository, so that they find what they read.
  python.FS.mkdirTree("/home/pyodide/page/book");
  python.FS.chdir("/home/pyodide/page/book");
  python.runPython(`import sys; sys.path.insert(0, "/home/pyodide"); import ln_needs, ln_run, lnlib.exercises`);
  python.pyimport("ln_run").settle(python.toPy(site.packages));
  tell("ready");
}

async function load(names, id) {
  const fresh = names.filter((name) => !there.has(name));
  const titles = { matplotlib: "Matplotlib", sympy: "SymPy", data: "data" };
  what = fresh.map((name) => titles[name] ?? name).join(" and ");
  [bytes, of] = [0, 0];
  if (fresh.length) tell("say", `Loading ${what}\u2026`, id);
  for (const name of fresh) {
    if (name === "data") {
      for (const path of site.data) {
        python.FS.mkdirTree(`/home/pyodide/page/${path}`.replace(/\/[^/]*$/, ""));
        python.FS.writeFile(`/home/pyodide/page/${path}`, await file(`files/${path}`));
      }
    } else if (name in site.wheels) await unpack(name);
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
}

onmessage = ({ data }) => {
  if (data.start) ready = start(data.start).catch((error) => { tell("failed", error.message); throw error; });
  else {
    const failed = (error) => tell("done", { failed: error.message }, data.id);
    ready = ready.then(() => run(data.run, data.id)).catch(failed);
  }
};
