// Answers the questions of the pages from a dossier, as the planner answered them.
import { ApiProblem } from "../lib/api";
import type { Records } from "../lib/records";
import type { EventView, ItemPage, LogLine, ResultList } from "../lib/types";
import {
  cutItems,
  expandMoment,
  type Dossier,
  type PastResult,
  type RecordedAnswer,
} from "./parts";
import { readChunk, readEvent, viewEvent, viewLines } from "./sealed_event";

const RESULTS = /^\/api\/result\/\d+\/list$/;
const RESULT = /^\/api\/executions\/\d+\/result\/(.+)$/;
const ITEMS = /^\/api\/executions\/\d+\/items\//;

export function buildRecords(dossier: Dossier): Records {
  const { events, logs, moments, answers } = dossier.parts;
  const versions = Object.keys(moments.value?.moments ?? {})
    .map(Number)
    .sort((one, other) => one - other);
  const views = (events.value ?? []).flatMap((event): EventView[] => {
    const fields = readEvent(event);
    return fields ? [viewEvent(fields)] : [];
  });
  let lines: LogLine[] | null = null;

  function findMoment(wanted: number | null): unknown {
    const version = versions.findLast((one) => wanted === null || one <= wanted);
    const found = moments.value && version && expandMoment(moments.value, version);
    if (!found) throw notHeld("this moment");
    return found;
  }

  function pageEvents(query: URLSearchParams): unknown {
    const after = Number(query.get("after") ?? 0);
    const later = views.filter((view) => view.version > after);
    const shown = later.slice(0, Number(query.get("limit") ?? 1000));
    return {
      events: shown,
      next_after: shown.at(-1)?.version ?? after,
      has_more: shown.length < later.length,
    };
  }

  function pageLines(query: URLSearchParams): unknown {
    lines ??= (logs.value ?? []).flatMap((kept) => {
      const chunk = readChunk(kept);
      return chunk ? viewLines(chunk) : [];
    });
    const wanted = lines.filter((line) => isWanted(line, query));
    const from = Number(query.get("after") || 0);
    const shown = wanted.slice(from, from + Number(query.get("limit") ?? 1000));
    return {
      lines: shown,
      next_after: String(from + shown.length),
      has_more: from + shown.length < wanted.length,
      lines_read: from === 0 ? lines.length : 0,
      note: logs.value?.length ? "" : "No task of this run has written anything.",
    };
  }

  /** The results that steps with several runs had; a dossier of an earlier release holds none. */
  function findPast(): Record<string, PastResult[]> {
    const found = Object.entries(answers.value ?? {}).find(([path]) =>
      /^\/api\/result\/\d+\/past$/.test(path),
    );
    return (found?.[1].body as { results?: Record<string, PastResult[]> })?.results ?? {};
  }

  function findPastResult(step: string, version: number): PastResult | undefined {
    return findPast()[step]?.findLast((one) => one.version <= version);
  }

  /** The results as they were known at a version. */
  function listPast(latest: ResultList, version: number): ResultList {
    const results = latest.results.flatMap((one) => {
      if (!findPast()[one.step]) return [one];
      const then = findPastResult(one.step, version)?.result;
      return then ? [then] : [];
    });
    return { ...latest, results };
  }

  function answer(method: string, address: string): unknown {
    const { pathname, searchParams: query } = new URL(address, "http://dossier");
    const path = decodeURIComponent(pathname);
    const version = query.get("version");
    if (method !== "GET") throw notHeld("what changes something");
    if (path.endsWith("/moment")) {
      return findMoment(version === null ? null : Number(version));
    }
    if (/^\/api\/executions\/\d+\/events$/.test(path)) return pageEvents(query);
    if (/^\/api\/executions\/\d+\/logs$/.test(path)) return pageLines(query);
    const step = RESULT.exec(path)?.[1];
    if (step !== undefined && version !== null && findPast()[step])
      return readAnswer(findPastResult(step, Number(version))?.preview ?? undefined, path);
    const body = readAnswer(answers.value?.[path], path);
    if (RESULTS.test(path) && version !== null)
      return listPast(body as ResultList, Number(version));
    if (!ITEMS.test(path)) return body;
    const limit = Number(query.get("limit") ?? 100);
    return cutItems(body as ItemPage, query.get("state") ?? "", query.get("after") ?? "", limit);
  }

  return { answer, versions };
}

function isWanted(line: LogLine, query: URLSearchParams): boolean {
  const read = (name: string): string => query.get(name) ?? "";
  return (
    (!read("step") || line.step === read("step")) &&
    (!read("stream") || line.stream === read("stream")) &&
    (!read("attempt") || line.attempt === Number(read("attempt"))) &&
    line.text.toLowerCase().includes(read("text").toLowerCase())
  );
}

function readAnswer(recorded: RecordedAnswer | undefined, path: string): unknown {
  if (!recorded) throw notHeld(path);
  if (recorded.status < 400) return recorded.body;
  const body = recorded.body as Record<string, unknown>;
  throw new ApiProblem(
    recorded.status,
    String(body.code ?? ""),
    String(body.detail ?? "The planner refused this."),
    String(body.hint ?? ""),
    body,
  );
}

function notHeld(what: string): ApiProblem {
  return new ApiProblem(
    0,
    "not_in_dossier",
    `This dossier does not hold ${what}.`,
    "Ask who exported it for the evidence: noetl replay verify ID",
  );
}
