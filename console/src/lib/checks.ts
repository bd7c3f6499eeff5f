// What checks of datasets have found, sorted for a page.
import type { CheckView } from "./types";

/** What one check has found in one run, in all its steps' runs together. */
export interface CheckOutcome {
  executionId: string;
  at: string;
  isMet: boolean;
  failedRows: number | null;
  measured: CheckView["measured"];
}

export interface CheckHistory {
  step: string;
  dataset: string;
  check: string;
  /** The latest first. */
  outcomes: CheckOutcome[];
}

/** Bring together the reports of each check, run by run; `reports` have the latest first. */
export function gatherChecks(reports: CheckView[]): CheckHistory[] {
  const histories = new Map<string, CheckHistory>();
  for (const report of reports) {
    const key = JSON.stringify([report.step, report.dataset, report.check]);
    const history = histories.get(key) ?? {
      step: report.step,
      dataset: report.dataset,
      check: report.check,
      outcomes: [],
    };
    histories.set(key, history);
    const before = history.outcomes.at(-1);
    if (before?.executionId === report.execution_id) addReport(before, report);
    else history.outcomes.push(readOutcome(report));
  }
  return [...histories.values()];
}

function readOutcome(report: CheckView): CheckOutcome {
  return {
    executionId: report.execution_id,
    at: report.at,
    isMet: report.is_met,
    failedRows: report.failed_rows,
    measured: report.measured,
  };
}

/** Add an earlier report of the same run: of two measures, one that breaks the check is shown. */
function addReport(outcome: CheckOutcome, report: CheckView): void {
  if (outcome.isMet && !report.is_met) outcome.measured = report.measured;
  outcome.isMet &&= report.is_met;
  if (report.failed_rows !== null) {
    outcome.failedRows = (outcome.failedRows ?? 0) + report.failed_rows;
  }
}

/** Say what was found: how many rows break a check, or what was measured. */
export function describeFinding(outcome: Pick<CheckOutcome, "failedRows" | "measured">): string {
  const { failedRows, measured } = outcome;
  if (failedRows === null) return measured === null ? "nothing measured" : `measured ${measured}`;
  return failedRows === 0
    ? "no row breaks it"
    : `${failedRows.toLocaleString("en")} ${failedRows === 1 ? "row breaks" : "rows break"} it`;
}

/** The reports of one step, by a version of the history. */
export function reportsOf(
  reports: CheckView[],
  step: string,
  untilVersion: number | null,
): CheckView[] {
  return reports.filter(
    (report) => report.step === step && (untilVersion === null || report.version <= untilVersion),
  );
}
