// Asks the planner, or the records of a dossier. Every failure is an ApiProblem, which says what is wrong and what to do.

import { findRecords } from "./records";

export class ApiProblem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly detail: string,
    readonly hint: string,
    readonly body: Record<string, unknown> = {},
  ) {
    super(detail);
  }
}

type Query = Record<string, string | number | boolean | null | undefined>;

let csrfToken = "";

export function setCsrfToken(token: string): void {
  csrfToken = token;
}

export function buildAddress(path: string, query: Query = {}): string {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") words.set(name, String(value));
  }
  const text = words.toString();
  return text ? `${path}?${text}` : path;
}

export function getJson<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  return sendRequest<T>("GET", buildAddress(path, query), undefined, {}, signal);
}

export function sendJson<T>(
  method: "POST" | "PUT" | "DELETE",
  path: string,
  body?: unknown,
  headers: Record<string, string> = {},
): Promise<T> {
  return sendRequest<T>(method, path, body, headers);
}

async function sendRequest<T>(
  method: string,
  address: string,
  body: unknown,
  more: Record<string, string>,
  signal?: AbortSignal,
): Promise<T> {
  const records = findRecords();
  if (records) return records.answer(method, address) as T;
  const headers: Record<string, string> = {
    Accept: "application/json",
    "X-NoETL-Client": "console",
    ...more,
  };
  if (method !== "GET" && csrfToken) headers["X-CSRF-Token"] = csrfToken;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer: Response;
  let text: string;
  try {
    answer = await fetch(address, {
      method,
      headers,
      body: body === undefined ? null : JSON.stringify(body),
      signal: signal ?? null,
    });
    text = await answer.text();
  } catch (failure) {
    if (failure instanceof DOMException && failure.name === "AbortError") throw failure;
    throw new ApiProblem(0, "unreachable", "The planner does not answer.", "See: noetl doctor");
  }
  const value = parseBody(text);
  if (!answer.ok) throw buildProblem(answer.status, value);
  return value as T;
}

function parseBody(text: string): unknown {
  try {
    return text ? JSON.parse(text) : {};
  } catch {
    return { detail: text.slice(0, 500) };
  }
}

function buildProblem(status: number, value: unknown): ApiProblem {
  const body = (typeof value === "object" && value !== null ? value : {}) as Record<
    string,
    unknown
  >;
  const read = (name: string): string => (typeof body[name] === "string" ? body[name] : "");
  return new ApiProblem(
    status,
    read("code") || `http_${status}`,
    read("detail") || `The planner answered ${status}.`,
    read("hint"),
    body,
  );
}

/** An id for a request that must take effect once, however often it is sent. */
export function makeKey(): string {
  return `console-${crypto.getRandomValues(new Uint32Array(4)).join("-")}`;
}
