// Work whose worker is not heard any more: which steps have it, and how pages say it.
import { formatClock } from "./format";
import { LOST } from "./status";
import type { LostWork, Moment, StepMoment } from "./types";

/** What is lost of a run, or of one of its steps; nothing of the past, and of a run that ended. */
export function listLost(moment: Moment, step?: string): LostWork[] {
  const lost = moment.lost ?? [];
  return step === undefined ? lost : lost.filter((work) => work.steps.includes(step));
}

/** The status that a step is shown with. */
export function showStatus(moment: Moment, step: StepMoment): string {
  return step.status === "RUNNING" && listLost(moment, step.step).length > 0 ? LOST : step.status;
}

/** Say on one line which worker is not heard, and since when. */
export function describeLost(work: LostWork): string {
  const since = formatClock(work.since).slice(0, "00:00:00".length);
  return work.is_held
    ? `nothing is heard of worker ${work.worker_id} since ${since}`
    : `worker ${work.worker_id} was lost, and no other has begun since ${since}`;
}
