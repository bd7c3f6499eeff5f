// How far the tasks of Spark are, as their workers tell it each second; nobody keeps it.

export interface StreamProgress {
  batch: number;
  rows?: number;
  files?: number;
  files_behind?: number;
  input_rows_per_s?: number;
  processed_rows_per_s?: number;
  batch_s?: number;
  watermark?: string;
}

export interface SparkProgress {
  phase: "session" | "queue" | "job";
  seconds: number;
  jobs?: number;
  /** Stages that run: number, tasks that have ended, tasks. */
  stages?: [number, number, number][];
  rows?: number;
  spill_bytes?: number;
  usual_s?: number;
  stream?: StreamProgress | null;
}

export interface StepProgress {
  step: string;
  command_id: string;
  attempt: number;
  spark: SparkProgress;
}

const REDRAW_MS = 400;
const OLD_MS = 10_000;
const TASKS_MAX = 64;

export class TaskProgress {
  /** What was told last of each task, in the order in which they began to tell. */
  tasks = $state.raw<StepProgress[]>([]);
  private readonly told = new Map<string, { progress: StepProgress; atMs: number }>();
  private timer = 0;

  put(progress: StepProgress): void {
    this.told.set(progress.command_id, { progress, atMs: Date.now() });
    if (this.told.size > TASKS_MAX) this.told.delete(this.told.keys().next().value ?? "");
    this.planRedraw(REDRAW_MS);
  }

  clear(): void {
    clearTimeout(this.timer);
    this.timer = 0;
    this.told.clear();
    this.tasks = [];
  }

  private planRedraw(pauseMs: number): void {
    if (!this.timer) this.timer = window.setTimeout(() => this.redraw(), pauseMs);
  }

  /** Show what is new, and forget tasks that tell nothing any more. */
  private redraw(): void {
    this.timer = 0;
    const oldest = Date.now() - OLD_MS;
    for (const [id, { atMs }] of this.told) if (atMs < oldest) this.told.delete(id);
    this.tasks = [...this.told.values()].map(({ progress }) => progress);
    if (this.told.size > 0) this.planRedraw(OLD_MS);
  }
}

/** Say in a few words what Spark does for a task. */
export function describeWork(spark: SparkProgress): string {
  if (spark.phase === "session") {
    return `Spark starts${spark.usual_s ? `, usually ${Math.round(spark.usual_s)} s` : ""}`;
  }
  if (spark.phase === "queue") return "waits for other Spark jobs of its worker";
  if (spark.stream) return `batch ${spark.stream.batch}`;
  if (!spark.jobs) return "Spark works, no job yet";
  const stages = (spark.stages ?? []).map(
    ([number, done, all]) => `stage ${number}: ${done}/${all}`,
  );
  return `job ${spark.jobs}${stages.length > 0 ? `, ${stages.join(", ")}` : ""}`;
}
