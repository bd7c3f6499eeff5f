// How a status is shown: a tone and a shape, so that colour is never the only sign.

export type Tone = "done" | "failed" | "running" | "waiting" | "idle";
export type Shape = "tick" | "cross" | "play" | "bars" | "ring" | "slash";

interface Look {
  tone: Tone;
  shape: Shape;
  name: string;
}

/** Of work that the ledger has as running, and whose worker is not heard. */
export const LOST = "LOST";

const LOOKS: Record<string, Look> = {
  COMPLETED: { tone: "done", shape: "tick", name: "completed" },
  FAILED: { tone: "failed", shape: "cross", name: "failed" },
  ABANDONED: { tone: "failed", shape: "cross", name: "abandoned" },
  RUNNING: { tone: "running", shape: "play", name: "running" },
  OPEN: { tone: "running", shape: "play", name: "open" },
  HELD: { tone: "running", shape: "play", name: "held" },
  CLAIMED: { tone: "running", shape: "play", name: "claimed" },
  [LOST]: { tone: "waiting", shape: "bars", name: "without a worker" },
  PAUSED: { tone: "waiting", shape: "bars", name: "paused" },
  PENDING: { tone: "idle", shape: "ring", name: "pending" },
  CANCELLED: { tone: "idle", shape: "slash", name: "cancelled" },
  SKIPPED: { tone: "idle", shape: "slash", name: "skipped" },
  UNDECIDED: { tone: "waiting", shape: "ring", name: "undecided" },
  degraded: { tone: "failed", shape: "cross", name: "degraded" },
  ok: { tone: "done", shape: "tick", name: "ok" },
  error: { tone: "failed", shape: "cross", name: "error" },
  behind: { tone: "waiting", shape: "bars", name: "behind" },
  silent: { tone: "idle", shape: "ring", name: "nobody asks now" },
  unserved: { tone: "failed", shape: "cross", name: "nobody reads" },
  safe: { tone: "done", shape: "tick", name: "as it must be" },
  risked: { tone: "waiting", shape: "bars", name: "as it must be, with a risk" },
  unsafe: { tone: "failed", shape: "cross", name: "not safe" },
  met: { tone: "done", shape: "tick", name: "holds" },
  broken: { tone: "failed", shape: "cross", name: "broken" },
  unknown: { tone: "idle", shape: "ring", name: "not known" },
};

export function lookOf(status: string): Look {
  return (
    LOOKS[status] ??
    LOOKS[status.toUpperCase()] ?? { tone: "idle", shape: "ring", name: status.toLowerCase() }
  );
}

const ENDED = new Set(["COMPLETED", "FAILED", "CANCELLED"]);

export function isEnded(status: string): boolean {
  return ENDED.has(status);
}

export const EXECUTION_STATUSES = [
  "PENDING",
  "RUNNING",
  "PAUSED",
  "COMPLETED",
  "FAILED",
  "CANCELLED",
];
