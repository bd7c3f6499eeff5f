// Computes every checksum of a dossier again, in the browser, and names what does not fit.
import { PART_NAMES, type Dossier, type SealedContent, type Seal } from "./parts";
import { followChain } from "./chain";
import { computeDigest } from "./digest";
import { decodeBytes, isFields, readChunk, readEvent, type Fields } from "./sealed_event";

export interface Finding {
  /** What it is about: an event, a payload, a part of the page. */
  name: string;
  message: string;
}

export interface ContentState {
  name: string;
  sha256: string;
  bytes: number;
  /** The versions of the events that name it. */
  versions: number[];
  state: "whole" | "changed" | "left out";
  reason: string;
}

export interface Verification {
  findings: Finding[];
  events: number;
  concealed: number;
  payloads: ContentState[];
  chunks: number;
  sealDigest: string;
}

const FORMAT = "noetl.dossier";
const FORMAT_VERSION = 1;
const REASONS: Record<string, string> = {
  too_large: "more than the bound of the dossier",
  sealed: "it holds a sealed value",
  missing: "the planner did not have it",
  corrupt: "the planner's copy does not have its digest",
  refused: "its reference was refused",
};
// These say that something is wrong where the dossier was made.
const DAMAGE = new Set(["missing", "corrupt", "refused"]);

export async function verifyDossier(dossier: Dossier): Promise<Verification> {
  const { seal, parts } = dossier;
  const findings = [...checkSeal(seal.value), ...(await checkParts(dossier))];
  const chain = await followChain(parts.events.value ?? [], seal.value?.head ?? null);
  const payloads = await checkPayloads(
    parts.payloads.value ?? [],
    findReferences((parts.events.value ?? []).map(readEvent)),
  );
  const logs = await checkLogs(parts.logs.value ?? []);
  return {
    findings: [...findings, ...chain.findings, ...payloads.findings, ...logs.findings],
    events: chain.events,
    concealed: chain.concealed,
    payloads: payloads.states,
    chunks: logs.held,
    sealDigest: seal.text === null ? "" : await computeDigest(encode(seal.text)),
  };
}

function checkSeal(seal: Seal | null): Finding[] {
  if (!seal) return [{ name: "seal", message: "The seal is missing or cannot be read." }];
  if (seal.format === FORMAT && seal.format_version === FORMAT_VERSION) return [];
  return [
    {
      name: "seal",
      message: `The seal is of format ${seal.format} ${seal.format_version}; this page checks ${FORMAT} ${FORMAT_VERSION}.`,
    },
  ];
}

async function checkParts({ seal, parts }: Dossier): Promise<Finding[]> {
  const findings: Finding[] = [];
  for (const name of PART_NAMES) {
    const { text, value } = parts[name];
    const message =
      text === null
        ? "This part is missing."
        : value === null
          ? "This part cannot be read: it is no JSON of its shape."
          : (await computeDigest(encode(text))) === seal.value?.parts?.[name]?.sha256
            ? ""
            : "This part was changed: its SHA-256 is not that of the seal.";
    if (message) findings.push({ name: `part ${name}`, message });
  }
  return findings;
}

/** The payloads that events refer to: by digest, the versions of the events. */
function findReferences(events: (Fields | null)[]): Map<string, number[]> {
  const found = new Map<string, number[]>();
  for (const fields of events) {
    if (!fields) continue;
    const version = Number(fields.stream_version);
    const rest: unknown[] = [fields.event, fields.payload_ref];
    while (rest.length > 0) {
      const value = rest.pop();
      if (typeof value !== "object" || value === null) continue;
      if (isFields(value) && typeof value.sha256 === "string" && typeof value.uri === "string") {
        const versions = found.get(value.sha256) ?? [];
        if (versions.at(-1) !== version) versions.push(version);
        found.set(value.sha256, versions);
      }
      rest.push(...Object.values(value));
    }
  }
  return found;
}

async function checkPayloads(
  payloads: SealedContent[],
  references: Map<string, number[]>,
): Promise<{ findings: Finding[]; states: ContentState[] }> {
  const findings: Finding[] = [];
  const states: ContentState[] = [];
  for (const payload of payloads) {
    const versions = references.get(payload.sha256) ?? [];
    const isWhole = payload.content !== null && (await hasDigest(payload));
    const state = payload.content === null ? "left out" : isWhole ? "whole" : "changed";
    const reason = REASONS[payload.left_out] ?? payload.left_out;
    states.push({ ...payload, versions, state, reason });
    const name = `payload ${payload.sha256.slice(0, 12)}`;
    const users = versions.length > 0 ? ` It belongs to event ${versions.join(", ")}.` : "";
    if (state === "changed")
      findings.push({ name, message: `Its bytes were changed: they have another digest.${users}` });
    if (state === "left out" && (DAMAGE.has(payload.left_out) || !payload.left_out))
      findings.push({ name, message: `It is not here: ${reason || "nothing says why"}.${users}` });
    if (versions.length === 0) findings.push({ name, message: "No event refers to it." });
  }
  const listed = new Set(payloads.map((payload) => payload.sha256));
  for (const [sha256, versions] of references) {
    if (!listed.has(sha256))
      findings.push({
        name: `payload ${sha256.slice(0, 12)}`,
        message: `It was taken out of the dossier; event ${versions.join(", ")} refers to it.`,
      });
  }
  return { findings, states };
}

/** Chunks of one writer are numbered, and each has the digest of the one before. */
async function checkLogs(chunks: SealedContent[]): Promise<{ findings: Finding[]; held: number }> {
  const findings: Finding[] = [];
  const latest = new Map<string, { number: number; sha256: string }>();
  let held = 0;
  for (const kept of chunks) {
    const name = `log ${kept.name}`;
    if (kept.content === null) {
      if (DAMAGE.has(kept.left_out) || !kept.left_out)
        findings.push({ name, message: `It is not here: ${REASONS[kept.left_out] ?? "?"}.` });
      // The digest that is listed stands for it in the chain of its log.
      const place = /\.([0-9a-f]{8})-(\d+)$/.exec(kept.name);
      if (place) latest.set(place[1] ?? "", { number: Number(place[2]), sha256: kept.sha256 });
      continue;
    }
    held += 1;
    if (!(await hasDigest(kept)))
      findings.push({ name, message: "Its lines were changed: they have another digest." });
    const chunk = readChunk(kept);
    if (!chunk) {
      findings.push({ name, message: "It cannot be read." });
      continue;
    }
    const before = latest.get(chunk.writer) ?? { number: 0, sha256: "" };
    if (chunk.number !== before.number + 1 || chunk.previous_sha256 !== before.sha256)
      findings.push({ name, message: "Lines before it were changed or taken out." });
    latest.set(chunk.writer, { number: chunk.number, sha256: kept.sha256 });
  }
  return { findings, held };
}

async function hasDigest(kept: SealedContent): Promise<boolean> {
  try {
    return (await computeDigest(decodeBytes(kept.content ?? ""))) === kept.sha256;
  } catch {
    // What is no base64 has no bytes.
    return false;
  }
}

function encode(text: string): Uint8Array<ArrayBuffer> {
  return new TextEncoder().encode(text);
}
