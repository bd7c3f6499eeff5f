// Items of loops that were recorded all together: pages of them, and how they were at a moment.
import { ApiProblem } from "../lib/api";
import type { ItemPage, ItemView, LoopView } from "../lib/types";

const ENDED = ["COMPLETED", "FAILED"];
const NEVER_BEGUN = ["pending", "cancelled"];

/** A page of items that were recorded all together. */
export function cutItems(all: ItemPage, state: string, after: string, limit: number): ItemPage {
  const wanted = state ? all.items.filter((item) => item.state === state) : all.items;
  const from = /^\d+$/.test(after) ? Number(after) : 0;
  const items = wanted.slice(from, from + limit);
  return {
    ...all,
    items,
    next_after: String(from + items.length),
    has_more: from + items.length < wanted.length,
  };
}

/** The items of a loop's run as they were, by the rules of the planner (`item_moments.py`). */
export function showItemsAt(page: ItemPage, loop: LoopView, at: string | null): ItemPage {
  // Nothing of a run of a loop that had ended changes any more.
  if (ENDED.includes(loop.status) || at === null) return page;
  const atMs = Date.parse(at);
  return { ...page, items: page.items.map((item) => showItemAt(item, atMs)) };
}

function showItemAt(item: ItemView, atMs: number): ItemView {
  if (item.taken_from) return item;
  if (!item.issued_at && !NEVER_BEGUN.includes(item.state))
    throw new ApiProblem(
      409,
      "items_without_times",
      `Nothing tells when item ${item.index} began: this loop keeps no such times.`,
      "Look at the latest moment, or at one after the end of the loop.",
    );
  if (item.ended_at && Date.parse(item.ended_at) <= atMs) return item;
  const open = {
    ...item,
    error: null,
    failed: null,
    ended_at: null,
    duration: null,
    attempts: 0,
    tries: [],
  };
  if (item.issued_at && Date.parse(item.issued_at) <= atMs) return { ...open, state: "running" };
  return { ...open, state: "pending", issued_at: null, worker_id: null };
}
