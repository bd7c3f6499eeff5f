// Numbers, times and texts as people read them.

const NUMBER = new Intl.NumberFormat("en");
const DAY = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export function formatNumber(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : NUMBER.format(value);
}

export function formatTime(text: string | null | undefined): string {
  return text ? DAY.format(new Date(text)) : "–";
}

export function formatClock(text: string | null | undefined): string {
  if (!text) return "–";
  const at = new Date(text);
  const part = (value: number, width = 2): string => String(value).padStart(width, "0");
  return `${part(at.getHours())}:${part(at.getMinutes())}:${part(at.getSeconds())}.${part(at.getMilliseconds(), 3)}`;
}

export function formatAge(text: string | null | undefined, now = Date.now()): string {
  if (!text) return "–";
  const seconds = Math.round((now - new Date(text).getTime()) / 1000);
  const ahead = seconds < 0;
  const size = formatRoughly(Math.abs(seconds));
  return ahead ? `in ${size}` : seconds < 2 ? "now" : `${size} ago`;
}

function formatRoughly(seconds: number): string {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return seconds < 48 * 3600
    ? `${Math.round(seconds / 3600)} h`
    : `${Math.round(seconds / 86400)} days`;
}

export function formatDuration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return "0 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48
    ? `${hours} h ${minutes % 60} min`
    : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function formatBytes(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let value = bytes;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export function formatJson(value: unknown): string {
  return value === undefined ? "" : JSON.stringify(value, null, 2);
}

const LONGEST_VALUE = 300;

/** A value on one line, as JSON: "5" is not 5, and null not a value that is missing. */
export function formatValue(value: unknown): string {
  const text = value === undefined ? "–" : JSON.stringify(value);
  return text.length > LONGEST_VALUE ? `${text.slice(0, LONGEST_VALUE)}…` : text;
}

/** A word of a shell's command, quoted where the shell would read it otherwise. */
export function quoteWord(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

export interface ShownError {
  code: string;
  message: string;
  step: string;
  hint: string;
}

/** What an error of an execution says; its form depends on where it came from. */
export function readError(error: unknown): ShownError | null {
  if (error === null || error === undefined) return null;
  if (typeof error !== "object") return { code: "", message: String(error), step: "", hint: "" };
  const fields = error as Record<string, unknown>;
  const read = (name: string): string => (typeof fields[name] === "string" ? fields[name] : "");
  const message = read("message") || read("detail") || formatJson(error);
  return { code: read("code") || read("kind"), message, step: read("step"), hint: read("hint") };
}
