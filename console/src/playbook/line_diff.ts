// Lines that two versions of a text do not share, by their longest common subsequence.

export interface DiffLine {
  kind: "same" | "added" | "removed";
  text: string;
}

// The table of the comparison has this many cells at most; longer texts are shown side by side.
const CELLS_MAX = 4_000_000;
const CONTEXT = 3;

export function diffLines(before: string, after: string): DiffLine[] | null {
  const [one, other] = [before.split("\n"), after.split("\n")];
  if (one.length * other.length > CELLS_MAX) return null;
  const width = other.length + 1;
  const lengths = new Uint32Array((one.length + 1) * width);
  for (let i = one.length - 1; i >= 0; i -= 1) {
    for (let j = other.length - 1; j >= 0; j -= 1) {
      lengths[i * width + j] =
        one[i] === other[j]
          ? (lengths[(i + 1) * width + j + 1] ?? 0) + 1
          : Math.max(lengths[(i + 1) * width + j] ?? 0, lengths[i * width + j + 1] ?? 0);
    }
  }
  const found: DiffLine[] = [];
  let [i, j] = [0, 0];
  while (i < one.length || j < other.length) {
    if (i < one.length && j < other.length && one[i] === other[j]) {
      found.push({ kind: "same", text: one[i] ?? "" });
      i += 1;
      j += 1;
    } else if (
      i < one.length &&
      (j >= other.length ||
        (lengths[(i + 1) * width + j] ?? 0) >= (lengths[i * width + j + 1] ?? 0))
    ) {
      found.push({ kind: "removed", text: one[i] ?? "" });
      i += 1;
    } else {
      found.push({ kind: "added", text: other[j] ?? "" });
      j += 1;
    }
  }
  return found;
}

/** What changed, with some lines around it. */
export function keepContext(lines: DiffLine[]): DiffLine[] {
  const near = new Set<number>();
  lines.forEach((line, index) => {
    if (line.kind === "same") return;
    for (let at = index - CONTEXT; at <= index + CONTEXT; at += 1) near.add(at);
  });
  return lines.filter((_, index) => near.has(index));
}
