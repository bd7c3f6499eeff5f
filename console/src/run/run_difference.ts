// Two runs side by side: their steps, in the order of the first, and what differs of each.
import type { Moment, ResultList, StepMoment } from "../lib/types";

type Result = ResultList["results"][number];

export interface ComparedStep {
  step: string;
  one: StepMoment | null;
  other: StepMoment | null;
  /** In words, what is not equal; durations are shown and never count as a difference. */
  differences: string[];
}

export interface ComparedInput {
  name: string;
  one: unknown;
  other: unknown;
}

export function compareSteps(
  one: Moment,
  other: Moment,
  results: [ResultList, ResultList] | null,
): ComparedStep[] {
  const theirs = new Map(other.steps.map((step) => [step.step, step]));
  const ours = new Map(one.steps.map((step) => [step.step, step]));
  const names = [...ours.keys(), ...[...theirs.keys()].filter((name) => !ours.has(name))];
  const [first, second] = (results ?? []).map(
    (list) => new Map(list.results.map((result) => [result.step, result])),
  );
  return names.map((step) => {
    const [left, right] = [ours.get(step) ?? null, theirs.get(step) ?? null];
    const differences = listStepDifferences(left, right);
    if (left && right && first && second) {
      differences.push(...listResultDifferences(first.get(step), second.get(step)));
    }
    return { step, one: left, other: right, differences };
  });
}

function listStepDifferences(one: StepMoment | null, other: StepMoment | null): string[] {
  if (!one || !other) return [one ? "only in this run" : "only in the other run"];
  const found: string[] = [];
  if (one.status !== other.status) found.push("status");
  if (!isEqual(one.error ?? null, other.error ?? null)) found.push("error");
  if (one.runs !== other.runs) found.push(`runs: ${one.runs}, ${other.runs}`);
  if (one.retries !== other.retries) found.push(`retries: ${one.retries}, ${other.retries}`);
  if (one.came_from !== other.came_from) found.push("came from");
  return found;
}

function listResultDifferences(one: Result | undefined, other: Result | undefined): string[] {
  if (!one || !other) return one || other ? ["result"] : [];
  if (one.row_count !== other.row_count)
    return [`rows: ${one.row_count ?? "–"}, ${other.row_count ?? "–"}`];
  return one.digest === other.digest ? [] : ["result"];
}

export function compareInputs(one: unknown, other: unknown): ComparedInput[] {
  const [ours, theirs] = [readFields(one), readFields(other)];
  return [...new Set([...Object.keys(ours), ...Object.keys(theirs)])]
    .filter((name) => !isEqual(ours[name], theirs[name]))
    .map((name) => ({ name, one: ours[name], other: theirs[name] }));
}

function readFields(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

/** Whether two values of JSON are equal; the order of an object's fields says nothing. */
export function isEqual(one: unknown, other: unknown): boolean {
  if (one === other) return true;
  if (typeof one !== "object" || typeof other !== "object" || !one || !other) return false;
  if (Array.isArray(one) !== Array.isArray(other)) return false;
  const [ours, theirs] = [readFields(one), readFields(other)];
  const names = Object.keys(ours);
  return (
    names.length === Object.keys(theirs).length &&
    names.every((name) => name in theirs && isEqual(ours[name], theirs[name]))
  );
}
