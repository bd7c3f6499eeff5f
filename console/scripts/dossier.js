// Writes the page of dossiers: its program and style within it, and the policy that lets no other
// run. Who exports a run puts the parts where the page says.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";

const [built, target] = process.argv.slice(2);
if (!built || !target) throw new Error("dossier.js BUILT TARGET");

const digest = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
// Within a page these would end the script, or begin a comment in it.
const program = readFileSync(`${built}/dossier.js`, "utf8").replaceAll(
  /<(?=\/script|script|!--)/gi,
  "\\x3C",
);
const style = readFileSync(`${built}/dossier.css`, "utf8");
if (/<\/style/i.test(style)) throw new Error("the style ends itself");
const policy = [
  "default-src 'none'",
  `script-src ${digest(program)}`,
  `style-src ${digest(style)}`,
  "img-src data:",
  "base-uri 'none'",
  "form-action 'none'",
].join("; ");
const page = readFileSync(new URL("../dossier.html", import.meta.url), "utf8")
  .replace("@policy@", () => policy)
  .replace(/\s*@style@\s*/, () => style)
  .replace(/\s*@program@\s*/, () => program);
writeFileSync(target, page);
