// Writes editor.js, and the licences of all that is in it, into a folder:  node build.mjs FOLDER
import { build } from "esbuild";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";

const folder = process.argv[2];
const { metafile } = await build({
  absWorkingDir: import.meta.dirname, entryPoints: ["editor.mjs"], outfile: resolve(folder, "editor.js"),
  bundle: true, minify: true,
  format: "iife", globalName: "lnEditor",  // a script: pages opened from disk load no modules
  target: "es2020", legalComments: "none", metafile: true,
});
const named = Object.keys(metafile.inputs).map((path) => path.match(/node_modules\/((@[^/]+\/)?[^/]+)/)?.[1]);
const notices = [...new Set(named.filter(Boolean))].sort().map((name) => {
  const home = join(import.meta.dirname, "node_modules", name);
  const { version } = JSON.parse(readFileSync(join(home, "package.json"), "utf8"));
  const licence = readdirSync(home).find((file) => /^licen[cs]e/i.test(file));
  return `${name} ${version}\n\n${readFileSync(join(home, licence), "utf8").trim()}\n`;
});
const line = `\n${"-".repeat(70)}\n\n`;
writeFileSync(join(folder, "editor.licences.txt"), `editor.js contains:\n\n${notices.join(line)}`);
