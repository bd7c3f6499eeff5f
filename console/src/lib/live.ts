// Tells that a run moved on: one stream of its events, or a look now and then where that breaks.

const REDRAW_MS = 400;
const FALLBACK_MS = 2500;
const RETRY_MS = 5000;
const AFTERWARDS_MS = 1000;

/**
 * Show the run again when it has new events, one look at a time and some of them a second at most.
 * `showRun` returns the version that it shows then. Returns how to stop.
 */
export function followRun(id: string, after: number, showRun: () => Promise<number>): () => void {
  const controller = new AbortController();
  let last = after;
  let isStale = false;
  // Without a stream the page looks by itself after such a pause.
  let idleMs = 0;
  // Set from when a look is planned until its answer is there.
  let timer = 0;

  function planLook(pauseMs: number): void {
    if (!timer) timer = window.setTimeout(() => void look(), pauseMs);
  }

  async function look(): Promise<void> {
    isStale = false;
    const shown = await showRun();
    timer = 0;
    if (controller.signal.aborted) return;
    if (isStale) planLook(REDRAW_MS);
    // What is shown may be older than what the stream has told.
    else if (shown < last) planLook(AFTERWARDS_MS);
    else if (idleMs) planLook(idleMs);
  }

  function lookByItself(pauseMs: number): void {
    idleMs = pauseMs;
    planLook(pauseMs);
  }

  async function listen(): Promise<void> {
    while (!controller.signal.aborted) {
      try {
        const answer = await fetch(`/api/executions/${id}/stream?after=${last}`, {
          headers: { Accept: "text/event-stream", "X-NoETL-Client": "console" },
          signal: controller.signal,
        });
        if (!answer.ok || !answer.body) throw new Error(`stream: ${answer.status}`);
        idleMs = 0;
        const isOver = await readStream(answer.body, (version) => {
          last = Math.max(last, version);
          isStale = true;
          planLook(REDRAW_MS);
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

/** Read versions from a stream of events; true when it says that the run is over. */
async function readStream(
  body: ReadableStream<Uint8Array>,
  onVersion: (version: number) => void,
): Promise<boolean> {
  const reader = body
    .pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>)
    .getReader();
  let rest = "";
  let isOver = false;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return isOver;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line.startsWith("id:")) onVersion(Number(line.slice(3)));
      else if (line.startsWith("event:") && line.slice(6).trim() === "end") isOver = true;
    }
  }
}
