// Writes each file of the bundle compressed beside itself, where that is smaller.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const SMALLEST_BYTES = 512;
const folder = process.argv[2];
if (!folder) throw new Error("compress.js FOLDER");

for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
  if (!entry.isFile()) continue;
  const path = join(entry.parentPath, entry.name);
  const plain = readFileSync(path);
  if (plain.length < SMALLEST_BYTES) continue;
  const brotli = brotliCompressSync(plain, {
    params: {
      [constants.BROTLI_PARAM_QUALITY]: 9,
      [constants.BROTLI_PARAM_SIZE_HINT]: plain.length,
    },
  });
  const gzip = gzipSync(plain, { level: 9 });
  if (brotli.length < plain.length) writeFileSync(`${path}.br`, brotli);
  if (gzip.length < plain.length) writeFileSync(`${path}.gz`, gzip);
}
