// Live cells on a page opened from disk (the offline edition). There a browser refuses fetch() and workers of files,
// but runs scripts: so every file stands in disk/ as a script, which hands it over in base64. The worker is made from
// text, and asks this page for each file that it would fetch.
lnLive.disk = (() => {
  const root = new URL("../../", lnLive.code).href, found = {}, given = {};
  const name = (url) => url.slice(root.length).split("?")[0];
  window.lnFile = (path, data) => { given[path] = Uint8Array.from(atob(data), (c) => c.charCodeAt(0)); };
  const file = async (path) => {
    await (found[path] ??= lnLive.script(`disk/${path.replace(/[^\w.-]/g, "_")}.js`));
    return given[path];
  };

  // Runs in the worker, before worker.js.
  const shim = (root) => {
    const files = {}, waiting = {}, name = (url) => String(url.url ?? url).slice(root.length).split("?")[0];
    self.fetch = async (url) => {
      const key = name(url);
      const bytes = files[key] ?? await new Promise((done) => { waiting[key] = done; postMessage({ want: key }); });
      const type = key.endsWith(".wasm") ? "application/wasm" : "application/octet-stream";
      return new Response(bytes ?? null, { status: bytes ? 200 : 404, headers: { "Content-Type": type } });
    };
    self.importScripts = (url) => (0, eval)(new TextDecoder().decode(files[name(url)]));
    addEventListener("message", (event) => {
      if (!event.data.file) return;
      event.stopImmediatePropagation();
      files[event.data.file] = event.data.bytes;
      waiting[event.data.file]?.(event.data.bytes);
    });
  };

  /** The worker, as ``new Worker(url)`` makes it where files are served. */
  return async (url) => {
    const code = new TextDecoder().decode(await file(name(url)));
    const text = new Blob([`(${shim})(${JSON.stringify(root)});\n${code}`], { type: "text/javascript" });
    const worker = new Worker(URL.createObjectURL(text));
    const send = async (path) => worker.postMessage({ file: path, bytes: await file(path).catch(() => undefined) });
    worker.addEventListener("message", (event) => {
      if (event.data.want === undefined) return;
      event.stopImmediatePropagation();
      send(event.data.want);
    });
    // What the worker takes with importScripts() must be there before.
    const pyodide = name(`${lnLive.lite}static/pyodide/`);
    await Promise.all(["pyodide.js", "pyodide.asm.js"].map((path) => send(pyodide + path)));
    return worker;
  };
})();
