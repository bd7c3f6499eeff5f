// Words of the language that an editor offers; the planner's check says which of them fit.
import type { CompletionContext, CompletionResult } from "@codemirror/autocomplete";
import vocabulary from "./vocabulary.json";

export function completeWords(context: CompletionContext): CompletionResult | null {
  const kind = context.matchBefore(/\bkind:\s*\w*/);
  if (kind) {
    const from = kind.from + kind.text.search(/\w*$/);
    return { from, options: vocabulary.kinds.map((label) => ({ label, type: "constant" })) };
  }
  const word = context.matchBefore(/(?:^|[\s{,-])\w+$/);
  if (!word && !context.explicit) return null;
  const from = word ? word.from + word.text.search(/\w+$/) : context.pos;
  return {
    from,
    options: vocabulary.keys.map((label) => ({ label, type: "property", apply: `${label}: ` })),
  };
}
