// The chain of an execution's events: each checksum covers the event and the checksum before it.
import { computeDigest } from "./digest";
import type { Head, SealedEvent } from "./parts";
import { isFields, nameType, readEvent, type Fields } from "./sealed_event";
import type { Finding } from "./verification";

export interface Chain {
  findings: Finding[];
  events: number;
  concealed: number;
}

/** Follow the chain from the first event to the head that the seal names. */
export async function followChain(events: SealedEvent[], head: Head | null): Promise<Chain> {
  const findings: Finding[] = [];
  let concealed = 0;
  let last = { version: 0, checksum: "" };
  // Behind a change the chain goes on from the checksum that is stated or from the one computed.
  let computed: string | null = null;
  let doubted: Finding | null = null;
  for (const [index, event] of events.entries()) {
    const fields = readEvent(event);
    const version = Number(fields?.stream_version);
    const name = nameEvent(fields, index);
    if (!fields || !Number.isInteger(version)) {
      findings.push({ name, message: "It cannot be read." });
      last = { version: last.version + 1, checksum: event.checksum };
      computed = null;
      continue;
    }
    const gap = version - last.version - 1;
    if (gap !== 0) {
      findings.push(describeGap(name, last.version, version));
      // What its checksum was computed behind is not here: the next event shows whether it fits.
      if (gap > 0) last = { version, checksum: event.checksum };
      computed = null;
      continue;
    }
    if (event.altered.length > 0)
      findings.push({
        name,
        message: `In the ledger its columns say something else: ${event.altered.join(", ")}.`,
      });
    const digest = await chainDigest(last.checksum, event.text);
    if (event.concealed) concealed += 1;
    else if (digest !== event.checksum) {
      const other: string | null =
        computed === null ? null : await chainDigest(computed, event.text);
      if (doubted && other === event.checksum)
        doubted.message = "Its checksum was changed; what it says fits the events around it.";
      else {
        doubted = { name, message: "It was changed: it is not what was sealed." };
        findings.push(doubted);
        last = { version, checksum: event.checksum };
        computed = digest;
        continue;
      }
    }
    last = { version, checksum: event.checksum };
    computed = null;
  }
  findings.push(...checkHead(last, head));
  return { findings, events: events.length, concealed };
}

function nameEvent(fields: Fields | null, index: number): string {
  if (!fields) return `line ${index + 1} of the events`;
  const type = isFields(fields.event) ? nameType(fields.event) : "?";
  return `event ${String(fields.stream_version)}, ${type}, ${String(fields.event_id)}`;
}

function describeGap(name: string, before: number, version: number): Finding {
  if (version <= before)
    return { name, message: `It stands behind version ${before}: it was moved or put in.` };
  const [from, to] = [before + 1, version - 1];
  return {
    name: from === to ? `event ${from}` : `events ${from} to ${to}`,
    message: `Taken out: version ${version} follows version ${before}.`,
  };
}

function checkHead(last: Head, head: Head | null): Finding[] {
  if (head === null) return [];
  if (last.version < head.version)
    return [
      {
        name: `events ${last.version + 1} to ${head.version}`,
        message: `Taken out: the seal says that the history ends at version ${head.version}.`,
      },
    ];
  if (last.version === head.version && last.checksum === head.checksum) return [];
  return [
    {
      name: `head, version ${last.version}`,
      message: "The history does not end with the checksum that the seal names.",
    },
  ];
}

function chainDigest(previous: string, text: string): Promise<string> {
  return computeDigest(new TextEncoder().encode(previous + text));
}
