// What a person does to runs: each asks before it acts, and the planner records who asked.
import { ApiProblem, makeKey, sendJson } from "./api";
import { confirmation, notices } from "./confirm.svelte";
import { router } from "./router.svelte";
import { isEnded } from "./status";
import type { Accepted, Summary } from "./types";

const AT_ONCE = 8;

/** Do something, and say how it went; false where it failed. */
export async function attempt(what: string, action: () => Promise<unknown>): Promise<boolean> {
  try {
    await action();
    notices.show(what);
    return true;
  } catch (failure) {
    if (!(failure instanceof ApiProblem)) throw failure;
    notices.show([failure.detail, failure.hint].filter(Boolean).join(" "), true);
    return false;
  }
}

export async function cancelRuns(runs: Summary[]): Promise<boolean> {
  const live = runs.filter((run) => !isEnded(run.status));
  const reason = await confirmation.ask({
    title: `Cancel ${countRuns(live.length)}?`,
    text: "What is running is stopped. What has ended stays as it is.",
    action: "Cancel",
    isDangerous: true,
    label: "Reason, for the history",
    command: `noetl cancel ${live.map((run) => run.execution_id).join(" ")}`,
  });
  if (reason === null) return false;
  return attempt(`${countRuns(live.length)} will be cancelled`, () =>
    inTurns(live, (run) =>
      sendJson("POST", `/api/executions/${run.execution_id}/cancel`, { reason: reason || null }),
    ),
  );
}

export async function rerunRuns(runs: Summary[]): Promise<boolean> {
  const ended = runs.filter((run) => isEnded(run.status));
  const answer = await confirmation.ask({
    title: `Run ${countRuns(ended.length)} again?`,
    text: "Each begins anew as a run of its own: a failed one at the step that failed, any other at its first.",
    action: "Run again",
  });
  if (answer === null) return false;
  return attempt(`${countRuns(ended.length)} begin again`, () =>
    inTurns(ended, (run) =>
      sendJson(
        "POST",
        `/api/executions/${run.execution_id}/rerun`,
        {},
        { "Idempotency-Key": makeKey() },
      ),
    ),
  );
}

export async function cancelRun(id: string): Promise<boolean> {
  const reason = await confirmation.ask({
    title: "Cancel this run?",
    text: "What is running is stopped, in its children too. What has ended stays as it is.",
    action: "Cancel the run",
    isDangerous: true,
    label: "Reason, for the history",
    command: `noetl cancel ${id}`,
  });
  if (reason === null) return false;
  return attempt("The run will be cancelled", () =>
    sendJson("POST", `/api/executions/${id}/cancel`, { reason: reason || null }),
  );
}

export async function pauseRun(id: string): Promise<boolean> {
  const reason = await confirmation.ask({
    title: "Pause this run?",
    text: "Nothing more is begun until it is resumed. What runs may finish.",
    action: "Pause",
    label: "Reason, for the history",
    command: `noetl pause ${id}`,
  });
  if (reason === null) return false;
  return attempt("The run is held", () =>
    sendJson("POST", `/api/executions/${id}/pause`, { reason: reason || null }),
  );
}

export function resumeRun(id: string): Promise<boolean> {
  return attempt("The run goes on", () => sendJson("POST", `/api/executions/${id}/resume`));
}

export async function rerunFrom(id: string, steps: string[], step: string): Promise<boolean> {
  const from = await confirmation.ask({
    title: "Run again from a step?",
    text: "A new run takes over what had ended before the step. This run's history stays as it is.",
    action: "Run again",
    label: "From step",
    choices: step ? [step, ...steps.filter((name) => name !== step)] : steps,
    command: `noetl rerun ${id}${step ? ` --from ${step}` : ""}`,
  });
  return from !== null && begin(`/api/executions/${id}/rerun`, { from_step: from });
}

export async function rerunFailedItems(id: string, step: string): Promise<boolean> {
  const answer = await confirmation.ask({
    title: "Run the failed items again?",
    text: `A new run takes over the items of "${step}" that completed, and runs the others.`,
    action: "Run failed items",
    command: `noetl rerun ${id} --failed`,
  });
  return answer !== null && begin(`/api/executions/${id}/rerun`, { from_step: step, failed: true });
}

export async function forkRun(id: string, version: number): Promise<boolean> {
  const answer = await confirmation.ask({
    title: `Fork at version ${version}?`,
    text: "A new run goes on from the state that this one had at that moment. This run stays as it is.",
    action: "Fork",
    command: `noetl fork ${id} --at ${version}`,
  });
  return answer !== null && begin(`/api/executions/${id}/fork`, { as_of_position: version });
}

export async function decideApproval(
  id: string,
  decision: string,
  title: string,
): Promise<boolean> {
  const comment = await confirmation.ask({
    title: `${decision}: ${title}`,
    text: "The first decision counts, and the history says whose it was.",
    action: decision,
    label: "Comment",
    command: `noetl approve ${id} --decision ${decision}`,
  });
  if (comment === null) return false;
  return attempt(`Decided: ${decision}`, () =>
    sendJson("POST", `/api/approvals/${id}`, { decision, comment: comment || null }),
  );
}

export async function sendSignal(key: string): Promise<boolean> {
  const text = await confirmation.ask({
    title: `Send a signal to ${key}?`,
    text: "The message is kept until a task waits for the key.",
    action: "Send",
    label: "Message, as JSON",
    value: "{}",
    command: `noetl signal ${key} '{}'`,
  });
  if (text === null) return false;
  return attempt("The signal is kept", () => {
    let message: unknown;
    try {
      message = JSON.parse(text);
    } catch {
      throw new ApiProblem(
        0,
        "not_json",
        "The message is not JSON.",
        'Write for example {"ok": true}.',
      );
    }
    return sendJson("POST", `/api/signals/${encodeURIComponent(key)}`, message);
  });
}

async function begin(address: string, body: unknown): Promise<boolean> {
  return attempt("A new run begins", async () => {
    const begun = await sendJson<Accepted>("POST", address, body, { "Idempotency-Key": makeKey() });
    router.open(`/runs/${begun.execution_id}`);
  });
}

function countRuns(count: number): string {
  return count === 1 ? "1 run" : `${count} runs`;
}

/** Do it for each, some at once; one that fails keeps none of the others from it. */
async function inTurns<T>(values: T[], action: (value: T) => Promise<unknown>): Promise<void> {
  const failures: unknown[] = [];
  for (let place = 0; place < values.length; place += AT_ONCE) {
    const ends = await Promise.allSettled(values.slice(place, place + AT_ONCE).map(action));
    failures.push(...ends.flatMap((end) => (end.status === "rejected" ? [end.reason] : [])));
  }
  const first = failures[0];
  if (first === undefined) return;
  if (!(first instanceof ApiProblem)) throw first;
  const detail = `${failures.length} of ${values.length} failed, the first: ${first.detail}`;
  throw new ApiProblem(first.status, first.code, detail, first.hint, first.body);
}
