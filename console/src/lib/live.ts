// Tells that a run moved on: one stream of its events, or a look now and then where that breaks.
import { readMessages } from "./event_stream";
import type { StepProgress } from "./task_progress.svelte";

const REDRAW_MS = 400;
// The slower the planner answers, the less it is asked: so long a pause for each time of an answer.
const PAUSES_AN_ANSWER = 10;
const REDRAW_MAX_MS = 5000;
const FALLBACK_MS = 2500;
const RETRY_MS = 5000;
const AFTERWARDS_MS = 1000;

/**
 * Show the run again when it has new events, one look at a time and some of them a second at most.
 * `showRun` returns the version that it shows then, and `onProgress` hears how far tasks of Spark
 * are. Returns how to stop.
 */
export function followRun(
  id: string,
  after: number,
  showRun: () => Promise<number>,
  onProgress: (progress: StepProgress) => void,
): () => void {
  const controller = new AbortController();
  let last = after;
  let isStale = false;
  // Without a stream the page looks by itself after such a pause.
  let idleMs = 0;
  // Set from when a look is planned until its answer is there.
  let timer = 0;
  let redrawMs = REDRAW_MS;

  function planLook(pauseMs: number): void {
    if (!timer) timer = window.setTimeout(() => void look(), pauseMs);
  }

  async function look(): Promise<void> {
    isStale = false;
    const beganAt = performance.now();
    const shown = await showRun();
    timer = 0;
    const wantedMs = (performance.now() - beganAt) * PAUSES_AN_ANSWER;
    redrawMs = Math.min(REDRAW_MAX_MS, Math.max(REDRAW_MS, wantedMs));
    if (controller.signal.aborted) return;
    if (isStale) planLook(redrawMs);
    // What is shown may be older than what the stream has told.
    else if (shown < last) planLook(AFTERWARDS_MS);
    else if (idleMs) planLook(idleMs);
  }

  function lookByItself(pauseMs: number): void {
    idleMs = pauseMs;
    planLook(pauseMs);
  }

  /** Take a message; true when it says that the run is over. */
  function takeMessage(event: string, data: string, version: number): boolean {
    if (event === "progress") {
      onProgress(JSON.parse(data) as StepProgress);
      return false;
    }
    if (version) {
      last = Math.max(last, version);
      isStale = true;
      planLook(redrawMs);
    }
    return event === "end";
  }

  async function listen(): Promise<void> {
    while (!controller.signal.aborted) {
      try {
        const answer = await fetch(
          `/api/executions/${id}/stream?after=${last}&events=false&progress=true`,
          {
            headers: { Accept: "text/event-stream", "X-NoETL-Client": "console" },
            signal: controller.signal,
          },
        );
        if (!answer.ok || !answer.body) throw new Error(`stream: ${answer.status}`);
        idleMs = 0;
        let isOver = false;
        await readMessages(answer.body, (message) => {
          if (takeMessage(message.event, message.data, message.id)) isOver = true;
        });
        // The caller stops once it shows the end.
        if (isOver) return lookByItself(AFTERWARDS_MS);
      } catch {
        // Without the stream the page looks by itself, and tries the stream again.
        if (controller.signal.aborted) return;
        lookByItself(FALLBACK_MS);
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  void listen();
  return () => {
    controller.abort();
    clearTimeout(timer);
  };
}
