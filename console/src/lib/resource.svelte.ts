// What a page shows of the planner: asked for, kept, asked for again while the page is looked at.
import { untrack } from "svelte";
import { ApiProblem } from "./api";

export class Resource<T> {
  data = $state.raw<T | null>(null);
  problem = $state.raw<ApiProblem | null>(null);
  private controller: AbortController | null = null;

  constructor(private readonly read: (signal: AbortSignal) => Promise<T>) {}

  /**
   * Ask now; an answer that comes after a later question is dropped. What the question is made of
   * is not tracked: an effect that asks names what it asks again for.
   */
  async refresh(): Promise<void> {
    this.controller?.abort();
    const controller = new AbortController();
    this.controller = controller;
    try {
      const data = await untrack(() => this.read(controller.signal));
      if (controller.signal.aborted) return;
      this.data = data;
      this.problem = null;
    } catch (failure) {
      if (controller.signal.aborted) return;
      if (!(failure instanceof ApiProblem)) throw failure;
      this.problem = failure;
    }
  }

  /** Show what was told without asking; an answer that is waited for is older, and is dropped. */
  put(data: T): void {
    this.controller?.abort();
    this.data = data;
    this.problem = null;
  }

  /** Ask again after each pause, as long as `isWanted` and the page is visible. */
  poll(pauseMs: number, isWanted: () => boolean = () => true): () => void {
    let timer = 0;
    let isOver = false;
    const planTurn = (): void => {
      timer = window.setTimeout(() => void takeTurn(), pauseMs);
    };
    const takeTurn = async (): Promise<void> => {
      if (document.visibilityState === "visible" && isWanted()) await this.refresh();
      // The page may have been left while the answer was waited for.
      if (!isOver) planTurn();
    };
    planTurn();
    return () => {
      isOver = true;
      clearTimeout(timer);
      this.stop();
    };
  }

  stop(): void {
    this.controller?.abort();
  }
}
