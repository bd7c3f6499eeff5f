// Tells that a run moved on: one stream of its events, or a look now and then where that breaks.

const REDRAW_MS = 400;
const FALLBACK_MS = 2500;
const RETRY_MS = 5000;
const AFTERWARDS_MS = 1000;

/** Call `onChange` when there are new events, at most some times a second; returns how to stop. */
export function followRun(id: string, after: number, onChange: () => void): () => void {
  const controller = new AbortController();
  let redrawTimer = 0;
  let pollTimer = 0;

  function noteChange(): void {
    if (redrawTimer) return;
    redrawTimer = window.setTimeout(() => {
      redrawTimer = 0;
      onChange();
    }, REDRAW_MS);
  }

  async function listen(): Promise<void> {
    let last = after;
    while (!controller.signal.aborted) {
      try {
        const answer = await fetch(`/api/executions/${id}/stream?after=${last}`, {
          headers: { Accept: "text/event-stream", "X-NoETL-Client": "console" },
          signal: controller.signal,
        });
        if (!answer.ok || !answer.body) throw new Error(`stream: ${answer.status}`);
        clearInterval(pollTimer);
        pollTimer = 0;
        const isOver = await readStream(answer.body, (version) => {
          last = Math.max(last, version);
          noteChange();
        });
        if (isOver) {
          // What was read last may be older than the end: looked at until the caller stops.
          pollTimer = window.setInterval(onChange, AFTERWARDS_MS);
          return;
        }
      } catch {
        // Without the stream the page looks by itself, and tries the stream again.
        if (controller.signal.aborted) return;
        if (!pollTimer) pollTimer = window.setInterval(onChange, FALLBACK_MS);
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  void listen();
  return () => {
    controller.abort();
    clearTimeout(redrawTimer);
    clearInterval(pollTimer);
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
