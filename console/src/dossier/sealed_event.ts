// What a sealed text says, in the form that pages show.
import type { EventView, LogLine } from "../lib/types";
import type { SealedContent, SealedEvent } from "./parts";

export type Fields = Record<string, unknown>;

/** The fields of an event's text; null where it is no JSON. */
export function readEvent(event: SealedEvent): Fields | null {
  try {
    const value: unknown = JSON.parse(event.text);
    return isFields(value) ? value : null;
  } catch {
    return null;
  }
}

export function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function nameType(body: Fields): string {
  const tag = String(body.event_type ?? "");
  return tag === "custom" ? `custom.${String(body.name)}` : tag;
}

/** An event as the pages show it: everything comes from the text that was checked. */
export function viewEvent(fields: Fields): EventView {
  const { event, meta, stream_version, ...envelope } = fields;
  const body = isFields(event) ? event : {};
  const { event_type: _, result = null, error = null, ...context } = body;
  const ended = isFields(result) ? result.status : null;
  return {
    ...envelope,
    version: Number(stream_version),
    event_type: nameType(body),
    node_id: context.run_id ?? null,
    node_name: context.step ?? null,
    status: context.status ?? ended ?? null,
    created_at: envelope.event_time,
    context,
    result,
    error,
    meta: isFields(meta) ? meta : {},
    ...(isFields(meta) && meta.actor ? { actor: meta.actor } : {}),
  } as unknown as EventView;
}

/** A chunk of a log as it was written; what it needs to be shown and followed. */
export interface LogChunk {
  command_id: string;
  attempt: number;
  writer: string;
  worker_id: string;
  step: string;
  number: number;
  previous_sha256: string;
  first: number;
  sources: {
    task: string;
    unit: string;
    task_attempt: number;
    frame_id?: string | null;
    row_index?: number | null;
  }[];
  lines: [number, number, string, string, string][];
}

export function decodeBytes(content: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(content), (character) => character.charCodeAt(0));
}

/** Read a chunk; null where it is not held or cannot be read. */
export function readChunk(kept: SealedContent): LogChunk | null {
  if (kept.content === null) return null;
  try {
    return JSON.parse(new TextDecoder().decode(decodeBytes(kept.content))) as LogChunk;
  } catch {
    return null;
  }
}

export function viewLines(chunk: LogChunk): LogLine[] {
  return chunk.lines.map(([at, source, stream, level, text], index) => {
    const origin = chunk.sources[source];
    return {
      log: `${chunk.command_id}.${chunk.attempt}.${chunk.writer}`,
      sequence: chunk.first + index,
      at: new Date(at / 1000).toISOString(),
      step: chunk.step,
      task: origin?.task ?? "",
      unit: origin?.unit ?? "",
      frame_id: origin?.frame_id ?? null,
      row_index: origin?.row_index ?? null,
      attempt: chunk.attempt,
      task_attempt: origin?.task_attempt ?? 0,
      worker_id: chunk.worker_id,
      stream,
      level,
      text,
    };
  });
}
