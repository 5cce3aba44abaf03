/** Writes regard/look/page/page.html: the viewer in one file, without data. */

import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build, transform } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "..", "regard", "look", "page", "page.html");

/** The sha256 over the sources, each as path, zero byte, contents, zero byte, in the order of their paths. */
function sources() {
  const found = readdirSync(join(here, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath ?? entry.path, entry.name).slice(here.length + 1).replaceAll("\\", "/"));
  const hash = createHash("sha256");
  for (const path of ["viewer/index.html", "viewer/style.css", ...found.map((path) => `viewer/${path}`)].sort()) {
    hash.update(`${path}\0`);
    hash.update(readFileSync(join(here, "..", path)));
    hash.update("\0");
  }
  return hash.digest("hex");
}

const script = await build({
  entryPoints: [join(here, "src", "main.ts")],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "ascii",
  legalComments: "none",
  write: false,
});
const styles = ["style.css", "src/views.css"].map((path) => readFileSync(join(here, path), "utf8")).join("\n");
const style = await transform(styles, { loader: "css", minify: true });
const html = readFileSync(join(here, "index.html"), "utf8")
  .replace("<!-- built from -->", () => `<!-- built from sha256:${sources()} -->`)
  .replace("/* style */", () => style.code.trim())
  .replace("/* script */", () => script.outputFiles[0].text.trim().replaceAll("</script", "<\\/script"));
writeFileSync(target, html);
console.log(`${target}: ${html.length} bytes`);
