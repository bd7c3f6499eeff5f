// Asks for what the planner folds in slices, again and again until it is there.
import { getJson } from "./api";
import type { MomentProgress } from "./types";

type Query = Parameters<typeof getJson>[1];

/** Ask until the history is folded far enough; `tell` hears how far it is, null at the end. */
export async function getFolded<T extends object>(
  path: string,
  query: Query,
  signal: AbortSignal,
  tell: (progress: MomentProgress | null) => void,
): Promise<T> {
  try {
    for (;;) {
      const answer = await getJson<T | MomentProgress>(path, query, signal);
      if (!("folded" in answer)) return answer;
      if (signal.aborted) throw new DOMException("another moment is asked for", "AbortError");
      tell(answer);
    }
  } finally {
    if (!signal.aborted) tell(null);
  }
}
