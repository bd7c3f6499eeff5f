// The run that a page shows, as it is or as it was at a version: one answer for all its parts.
import { getFolded } from "../lib/folding";
import { followRun } from "../lib/live";
import { findRecords } from "../lib/records";
import { Resource } from "../lib/resource.svelte";
import { router } from "../lib/router.svelte";
import { isEnded } from "../lib/status";
import { TaskProgress } from "../lib/task_progress.svelte";
import type { Moment, MomentProgress, StageView } from "../lib/types";

export class RunView {
  readonly moment: Resource<Moment>;
  /** The version that is shown; null is the latest. */
  readonly asOf = $derived(readVersion(router.get("as_of")));
  readonly isLive = $derived.by(() => {
    const data = this.moment.data;
    // What is recorded goes on no more, though a moment of the past is still drawn.
    const canGoOn = findRecords() === null;
    return canGoOn && this.asOf === null && data !== null && !isEnded(data.status);
  });
  /** How far the fold of a moment is that takes more than one answer. */
  folding = $state.raw<MomentProgress | null>(null);
  /** How far tasks of Spark are, while the run goes on and its present is shown. */
  readonly progress = new TaskProgress();
  private stopFollowing: (() => void) | null = null;

  constructor(readonly id: string) {
    this.moment = new Resource<Moment>((signal) =>
      getFolded(
        `/api/executions/${id}/moment`,
        { version: this.asOf },
        signal,
        (progress) => (this.folding = progress),
      ),
    );
  }

  get data(): Moment | null {
    return this.moment.data;
  }

  get isPast(): boolean {
    return this.data?.is_past ?? false;
  }

  /** Until when things are shown, in milliseconds; null: all of them. */
  get untilMs(): number | null {
    return this.isPast && this.data?.at ? Date.parse(this.data.at) : null;
  }

  showVersion(version: number | null): void {
    router.setQuery({ as_of: version });
  }

  /** Follow the run while it goes on and its present is shown. */
  follow(): void {
    this.stop();
    if (!this.isLive) return;
    this.stopFollowing = followRun(this.id, {
      onMoment: (moment) => {
        // One that was on its way when the slider was moved.
        if (this.isLive) this.moment.put(moment);
      },
      onProgress: (progress) => this.progress.put(progress),
      showRun: () => this.moment.refresh(),
    });
  }

  stop(): void {
    this.stopFollowing?.();
    this.stopFollowing = null;
    this.progress.clear();
  }

  /** The first step that failed: where somebody looks first. */
  get troubledStep(): string | null {
    const steps = this.data?.steps ?? [];
    return steps.find((step) => step.status === "FAILED")?.step ?? null;
  }

  stagesOf(step: string): StageView[] {
    return (this.data?.stages ?? []).filter((stage) => stage.step === step);
  }
}

function readVersion(text: string): number | null {
  return /^\d{1,9}$/.test(text) && Number(text) > 0 ? Number(text) : null;
}
