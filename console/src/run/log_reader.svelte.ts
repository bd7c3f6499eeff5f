// The lines of a run: read page by page, and those that come while it is followed.
import { ApiProblem, getJson } from "../lib/api";
import type { LogLine, LogPage } from "../lib/types";

const PAGE = 5_000;
// The planner looks for no longer text.
export const TEXT_MAX = 200;
// More than this a page does not hold: the command line reads on.
export const LINES_MAX = 200_000;

/** What a line must have; an empty word asks for nothing. The planner looks for it. */
export interface WantedLines {
  step: string;
  text: string;
  stream: string;
  attempt: string;
}

export class LogReader {
  lines = $state.raw<LogLine[]>([]);
  note = $state("");
  problem = $state.raw<ApiProblem | null>(null);
  isReading = $state(false);
  hasRead = $state(false);
  isFull = $state(false);
  /** How many lines were looked through for those that are shown. */
  linesRead = $state(0);
  private after = "";
  private generation = 0;
  private asked: AbortController | null = null;

  constructor(private readonly id: string) {}

  /** Begin again, with the lines that are wanted. */
  restart(wanted: WantedLines): void {
    this.generation += 1;
    this.asked?.abort();
    this.asked = new AbortController();
    this.linesRead = 0;
    this.lines = [];
    this.after = "";
    this.hasRead = false;
    this.isFull = false;
    this.isReading = false;
    void this.readOn(wanted);
  }

  /** Read what has come since. */
  async readOn(wanted: WantedLines): Promise<void> {
    if (this.isReading || this.isFull) return;
    const generation = this.generation;
    this.isReading = true;
    try {
      for (;;) {
        const page = await getJson<LogPage>(
          `/api/executions/${this.id}/logs`,
          { ...wanted, after: this.after, limit: PAGE },
          this.asked?.signal,
        );
        if (generation !== this.generation) return;
        this.problem = null;
        this.note = page.note ?? "";
        this.after = page.next_after;
        this.linesRead += page.lines_read ?? page.lines.length;
        if (page.lines.length > 0) this.lines = this.lines.concat(page.lines);
        this.isFull = this.lines.length >= LINES_MAX;
        if (!page.has_more || this.isFull) break;
      }
    } catch (failure) {
      if (generation !== this.generation) return;
      if (!(failure instanceof ApiProblem)) throw failure;
      this.problem = failure;
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

/** A text in parts: those at odd places are what is looked for, in any case of its letters. */
export function splitText(text: string, search: string): string[] {
  if (!search) return [text];
  const escaped = search.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return text.split(new RegExp(`(${escaped})`, "iu"));
}
