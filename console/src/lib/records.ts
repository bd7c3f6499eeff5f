// Where the pages have their answers from: the planner, or records that stand in the page itself.

export interface Records {
  /** Answer a request as the planner did; raises an ApiProblem for what is not held. */
  answer: (method: string, address: string) => unknown;
  /** The versions whose moments are held, in order. */
  versions: number[];
}

let records: Records | null = null;

/** From now on nothing is asked for: all answers are those of the records. */
export function useRecords(held: Records): void {
  records = held;
}

export function findRecords(): Records | null {
  return records;
}
