// Shows a run as it goes on: from one stream of its moments, or by a look now and then where that breaks.
import { readMessages, type StreamMessage } from "./event_stream";
import type { StepProgress } from "./task_progress.svelte";
import type { Moment } from "./types";

const FALLBACK_MS = 2500;
const RETRY_MS = 5000;
const AFTERWARDS_MS = 1000;

export interface RunWatcher {
  /** The run has moved on, and is shown as it is now. */
  onMoment: (moment: Moment) => void;
  /** How far tasks of Spark are. */
  onProgress: (progress: StepProgress) => void;
  /** Ask for the run, and show it. */
  showRun: () => Promise<void>;
}

/** Follow a run until its end; returns how to stop. */
export function followRun(id: string, watcher: RunWatcher): () => void {
  const controller = new AbortController();
  // Set from when a look is planned until its answer is there.
  let timer = 0;
  // Without a stream the page looks by itself after such a pause.
  let idleMs = 0;

  function planLook(pauseMs: number): void {
    if (!timer) timer = window.setTimeout(() => void look(), pauseMs);
  }

  async function look(): Promise<void> {
    await watcher.showRun();
    timer = 0;
    if (!controller.signal.aborted && idleMs) planLook(idleMs);
  }

  function lookByItself(pauseMs: number): void {
    idleMs = pauseMs;
    planLook(pauseMs);
  }

  function takeMessage(message: StreamMessage): void {
    if (message.event === "moment") watcher.onMoment(JSON.parse(message.data) as Moment);
    else if (message.event === "progress")
      watcher.onProgress(JSON.parse(message.data) as StepProgress);
    // The caller stops once it shows the end.
    else if (message.event === "end") lookByItself(AFTERWARDS_MS);
  }

  async function listen(): Promise<void> {
    while (!controller.signal.aborted) {
      try {
        const answer = await fetch(`/api/executions/${id}/moment/stream`, {
          headers: { Accept: "text/event-stream", "X-NoETL-Client": "console" },
          signal: controller.signal,
        });
        if (!answer.ok || !answer.body) throw new Error(`stream: ${answer.status}`);
        idleMs = 0;
        await readMessages(answer.body, takeMessage);
        if (idleMs) return;
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
