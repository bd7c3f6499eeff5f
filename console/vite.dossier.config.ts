// Builds the program of a dossier: one classic script and one style, which stand in its page. A
// browser loads neither modules nor workers for a file from the disk.
import { fileURLToPath } from "node:url";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

const source = (path: string): string => fileURLToPath(new URL(path, import.meta.url));

export default defineConfig({
  plugins: [svelte()],
  define: { "process.env.NODE_ENV": '"production"' },
  resolve: {
    alias: [{ find: /^\.\/layout_engine$/, replacement: source("src/dossier/layout_engine.ts") }],
  },
  build: {
    target: "es2022",
    sourcemap: false,
    reportCompressedSize: false,
    chunkSizeWarningLimit: 4000,
    lib: {
      entry: source("src/dossier/main.ts"),
      name: "noetlDossier",
      formats: ["iife"],
      fileName: () => "dossier.js",
      cssFileName: "dossier",
    },
  },
});
