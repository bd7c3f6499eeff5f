// An independent reader of the contract: canonical bytes and the chain of envelopes.
// Numbers keep the text that they came with: JavaScript's own have 53 bits.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

class Number_ { constructor(text) { this.text = text; } }

function parse(text) {
  let at = 0;
  const fail = () => { throw new Error(`not JSON at ${at}`); };
  const token = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found === null) fail();
    at = pattern.lastIndex;
    return found[0];
  };
  const list = (close, item) => {
    at += 1;
    if (text[at] === close) { at += 1; return; }
    for (;;) {
      item();
      const next = text[at];
      at += 1;
      if (next === close) return;
      if (next !== ",") fail();
    }
  };
  const value = () => {
    switch (text[at]) {
      case "{": {
        const found = new Map();
        list("}", () => { const key = string(); token(/:/y); found.set(key, value()); });
        return found;
      }
      case "[": { const found = []; list("]", () => found.push(value())); return found; }
      case '"': return string();
      case "t": token(/true/y); return true;
      case "f": token(/false/y); return false;
      case "n": token(/null/y); return null;
      default: return new Number_(token(/-?\d+(\.\d+)?([eE][+-]?\d+)?/y));
    }
  };
  const string = () => JSON.parse(token(/"(?:[^"\\]|\\.)*"/sy));
  const found = value();
  if (at !== text.length) fail();
  return found;
}

// Keys are ordered as their UTF-8 bytes are; JavaScript itself compares units of 16 bits.
const byBytes = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));

function canonical(value) {
  if (value instanceof Map) {
    const keys = [...value.keys()].sort(byBytes);
    return `{${keys.map((key) => `${quoted(key)}:${canonical(value.get(key))}`).join(",")}}`;
  }
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value instanceof Number_) return value.text;
  return typeof value === "string" ? quoted(value) : String(value);
}

const quoted = (text) => JSON.stringify(text);
const digest = (...parts) => {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(part, "utf8");
  return hash.digest("hex");
};
const lines = (file) => readFileSync(file, "utf8").split("\n").filter((line) => line !== "");

function chain(file) {
  let before = "";
  for (const line of lines(file)) {
    const envelope = parse(line);
    const promised = envelope.get("envelope_checksum");
    envelope.set("envelope_checksum", "");
    envelope.set("ingest_time", null);
    before = digest(before, canonical(envelope));
    if (before !== promised) throw new Error(`${file}: ${envelope.get("stream_version").text}`);
  }
  return before;
}

const [values, ...histories] = process.argv.slice(2);
process.stdout.write(JSON.stringify({
  values: lines(values).map((line) => digest(canonical(parse(line)))),
  chains: histories.map(chain),
}));
