// Words of the language that an editor offers; the planner's check says which of them fit.
import type { CompletionContext, CompletionResult } from "@codemirror/autocomplete";

const KEYS = (
  "apiVersion kind metadata name path description workload workflow step tool tools args loop in iterator mode " +
  "max_in_flight frame rows cursor next arcs when on set save retry max_attempts delay backoff output inputs type " +
  "required default vars keychain credential timeout pool priority desc spec policy rules then else do"
).split(" ");
const KINDS =
  "python http postgres duckdb shell noop playbook wait approval signal callback spark nats".split(
    " ",
  );

export function completeWords(context: CompletionContext): CompletionResult | null {
  const kind = context.matchBefore(/\bkind:\s*\w*/);
  if (kind) {
    const from = kind.from + kind.text.search(/\w*$/);
    return { from, options: KINDS.map((label) => ({ label, type: "constant" })) };
  }
  const word = context.matchBefore(/(?:^|[\s{,-])\w+$/);
  if (!word && !context.explicit) return null;
  const from = word ? word.from + word.text.search(/\w+$/) : context.pos;
  return { from, options: KEYS.map((label) => ({ label, type: "property", apply: `${label}: ` })) };
}
