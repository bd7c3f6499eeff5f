// The parts of a dossier: blocks of JSON that stand in its page, and the seal that sums them.
import type { ItemPage, Moment, ResultOutline } from "../lib/types";

export const PART_NAMES = ["events", "payloads", "logs", "moments", "answers"] as const;
export type PartName = (typeof PART_NAMES)[number];

/** Where the history ends: its last version, and the checksum that covers all of it. */
export interface Head {
  version: number;
  checksum: string;
}

export interface Seal {
  format: string;
  format_version: number;
  execution_id: string;
  path: string;
  tenant_id: string;
  organization_id: string;
  created_at: string;
  exported_by: string;
  producer: string;
  permissions: string[];
  head: Head;
  parts: Record<PartName, { sha256: string; bytes: number }>;
  /** In words, what is not in the dossier. */
  left_out: string[];
}

/** An event: the text that its checksum covers, and the checksum. */
export interface SealedEvent {
  text: string;
  checksum: string;
  /** Values were masked on the way here: only its place in the chain can be checked. */
  concealed: boolean;
  /** Columns of the ledger that do not say what the sealed fields say. */
  altered: string[];
}

/** Bytes by their digest; without content `left_out` says why. */
export interface SealedContent {
  name: string;
  sha256: string;
  bytes: number;
  content: string | null;
  left_out: string;
}

/** Moments share their values: a field is a place in the pool, or a list of places. */
export interface PooledMoments {
  pool: unknown[];
  moments: Record<string, Record<string, number | number[]>>;
}

export interface RecordedAnswer {
  status: number;
  body: unknown;
}

/** What a step with several runs had as its result, from a version on; null for none. */
export interface PastResult {
  version: number;
  result: ResultOutline | null;
  preview: RecordedAnswer | null;
}

interface PartTypes {
  events: SealedEvent[];
  payloads: SealedContent[];
  logs: SealedContent[];
  moments: PooledMoments;
  answers: Record<string, RecordedAnswer>;
}

/** A part as it stands in the page; its value is null where it cannot be read. */
export interface Part<T> {
  text: string | null;
  value: T | null;
}

export type Parts = { [Name in PartName]: Part<PartTypes[Name]> };

export interface Dossier {
  seal: Part<Seal>;
  parts: Parts;
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isListOf = (value: unknown, ...texts: string[]): boolean =>
  Array.isArray(value) &&
  value.every((one) => isObject(one) && texts.every((name) => typeof one[name] === "string"));
const isListOfContents = (value: unknown): boolean => isListOf(value, "name", "sha256", "left_out");

// What a part must look like to be shown and checked at all.
const SHAPES: Record<PartName | "seal", (value: unknown) => boolean> = {
  seal: (value) =>
    isObject(value) &&
    isObject(value.head) &&
    isObject(value.parts) &&
    Array.isArray(value.left_out),
  events: (value) =>
    isListOf(value, "text", "checksum") &&
    (value as SealedEvent[]).every((event) => Array.isArray(event.altered)),
  payloads: isListOfContents,
  logs: isListOfContents,
  moments: (value) =>
    isObject(value) &&
    Array.isArray(value.pool) &&
    isObject(value.moments) &&
    Object.values(value.moments).every(isObject),
  answers: (value) => isObject(value) && Object.values(value).every(isObject),
};

export function readDossier(page: Document): Dossier {
  const read = <T>(name: PartName | "seal"): Part<T> => readPart<T>(page, name);
  return {
    seal: read("seal"),
    parts: {
      events: read("events"),
      payloads: read("payloads"),
      logs: read("logs"),
      moments: read("moments"),
      answers: read("answers"),
    },
  };
}

function readPart<T>(page: Document, name: PartName | "seal"): Part<T> {
  const text = page.getElementById(`dossier-${name}`)?.textContent ?? null;
  try {
    const value: unknown = text === null ? null : JSON.parse(text);
    return { text, value: SHAPES[name](value) ? (value as T) : null };
  } catch {
    return { text, value: null };
  }
}

export function expandMoment(pooled: PooledMoments, version: number): Moment | null {
  const fields = pooled.moments[version];
  if (!fields) return null;
  return Object.fromEntries(
    Object.entries(fields).map(([name, place]) => [
      name,
      Array.isArray(place) ? place.map((one) => pooled.pool[one]) : pooled.pool[place],
    ]),
  ) as unknown as Moment;
}

/** A page of items that were recorded all together. */
export function cutItems(all: ItemPage, state: string, after: string, limit: number): ItemPage {
  const wanted = state ? all.items.filter((item) => item.state === state) : all.items;
  const from = /^\d+$/.test(after) ? Number(after) : 0;
  const items = wanted.slice(from, from + limit);
  return {
    ...all,
    items,
    next_after: String(from + items.length),
    has_more: from + items.length < wanted.length,
  };
}
