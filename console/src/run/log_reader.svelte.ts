// The lines of a run: read page by page, and those that come while it is followed.
import { ApiProblem, getJson } from "../lib/api";
import type { LogLine, LogPage } from "../lib/types";

const PAGE = 5_000;
// More than this a page does not hold: the command line reads on.
export const LINES_MAX = 200_000;

export class LogReader {
  lines = $state.raw<LogLine[]>([]);
  note = $state("");
  problem = $state.raw<ApiProblem | null>(null);
  isReading = $state(false);
  hasRead = $state(false);
  isFull = $state(false);
  private after = "";
  private generation = 0;

  constructor(private readonly id: string) {}

  /** Begin again, with the lines of a step or of all. */
  restart(step: string): void {
    this.generation += 1;
    this.lines = [];
    this.after = "";
    this.hasRead = false;
    this.isFull = false;
    this.isReading = false;
    void this.readOn(step);
  }

  /** Read what has come since. */
  async readOn(step: string): Promise<void> {
    if (this.isReading || this.isFull) return;
    const generation = this.generation;
    this.isReading = true;
    try {
      for (;;) {
        const page = await getJson<LogPage>(`/api/executions/${this.id}/logs`, {
          step,
          after: this.after,
          limit: PAGE,
        });
        if (generation !== this.generation) return;
        this.problem = null;
        this.note = page.note ?? "";
        this.after = page.next_after;
        if (page.lines.length > 0) this.lines = this.lines.concat(page.lines);
        this.isFull = this.lines.length >= LINES_MAX;
        if (!page.has_more || this.isFull) break;
      }
    } catch (failure) {
      if (!(failure instanceof ApiProblem)) throw failure;
      if (generation === this.generation) this.problem = failure;
    } finally {
      if (generation === this.generation) {
        this.isReading = false;
        this.hasRead = true;
      }
    }
  }
}

export function isErrorLine(line: LogLine): boolean {
  return (
    /^(error|critical|fatal)$/i.test(line.level) ||
    /\b(error|exception|traceback)\b/i.test(line.text)
  );
}

/** Lines as a file has them. */
export function writeLines(lines: LogLine[]): string {
  return lines.map((line) => `${line.at} ${line.step} ${line.stream} ${line.text}`).join("\n");
}
