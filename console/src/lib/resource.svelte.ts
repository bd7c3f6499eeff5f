// What a page shows of the planner: asked for, kept, asked for again while the page is looked at.
import { ApiProblem } from "./api";

export class Resource<T> {
  data = $state.raw<T | null>(null);
  problem = $state.raw<ApiProblem | null>(null);
  isLoading = $state(true);
  private controller: AbortController | null = null;
  private timer = 0;

  constructor(private readonly read: (signal: AbortSignal) => Promise<T>) {}

  /** Ask now; an answer that comes after a later question is dropped. */
  async refresh(): Promise<void> {
    this.controller?.abort();
    const controller = new AbortController();
    this.controller = controller;
    this.isLoading = true;
    try {
      const data = await this.read(controller.signal);
      if (controller.signal.aborted) return;
      this.data = data;
      this.problem = null;
    } catch (failure) {
      if (controller.signal.aborted) return;
      if (!(failure instanceof ApiProblem)) throw failure;
      this.problem = failure;
    } finally {
      if (!controller.signal.aborted) this.isLoading = false;
    }
  }

  /** Ask again after each pause, as long as `isWanted` and the page is visible. */
  poll(pauseMs: number, isWanted: () => boolean = () => true): () => void {
    const turn = async (): Promise<void> => {
      if (document.visibilityState === "visible" && isWanted()) await this.refresh();
      this.timer = window.setTimeout(() => void turn(), pauseMs);
    };
    this.timer = window.setTimeout(() => void turn(), pauseMs);
    return () => this.stop();
  }

  stop(): void {
    clearTimeout(this.timer);
    this.controller?.abort();
  }
}
