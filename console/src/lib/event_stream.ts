// Reads the messages of a stream of server-sent events.

export interface StreamMessage {
  /** 0 where the message has none. */
  id: number;
  event: string;
  data: string;
}

/** Hand over each message as it comes, until the stream ends. */
export async function readMessages(
  body: ReadableStream<Uint8Array>,
  onMessage: (message: StreamMessage) => void,
): Promise<void> {
  const reader = body
    .pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>)
    .getReader();
  let rest = "";
  let message: StreamMessage = { id: 0, event: "", data: "" };
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "") {
        if (message.id || message.event) onMessage(message);
        message = { id: 0, event: "", data: "" };
      } else addLine(message, line);
    }
  }
}

function addLine(message: StreamMessage, line: string): void {
  const value = line.slice(line.indexOf(":") + 1).trim();
  if (line.startsWith("id:")) message.id = Number(value) || 0;
  else if (line.startsWith("event:")) message.event = value;
  else if (line.startsWith("data:")) message.data += value;
}
