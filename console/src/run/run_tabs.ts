// The parts of a run's page: each is loaded when it is opened, and given the same moment.
import type { Component } from "svelte";
import type { Moment } from "../lib/types";
import type { RunView } from "./run_view.svelte";

export interface TabProps {
  view: RunView;
  moment: Moment;
}

export interface RunTab {
  name: string;
  title: string;
  load: () => Promise<{ default: Component<TabProps> }>;
}

export const RUN_TABS: RunTab[] = [
  { name: "", title: "Overview", load: () => import("./Overview.svelte") },
  { name: "items", title: "Items", load: () => import("./Items.svelte") },
  { name: "logs", title: "Logs", load: () => import("./Logs.svelte") },
  { name: "events", title: "Events", load: () => import("./Events.svelte") },
  { name: "payloads", title: "Payloads", load: () => import("./Payloads.svelte") },
  { name: "context", title: "Context", load: () => import("./Context.svelte") },
  { name: "compare", title: "Compare", load: () => import("./Compare.svelte") },
  {
    name: "counterfactual",
    title: "Counterfactual",
    load: () => import("./Counterfactual.svelte"),
  },
];

/** Find a part by its name; the first stands for a name that no part has. */
export function findRunTab(name: string, tabs: RunTab[]): RunTab {
  const first = tabs[0];
  if (!first) throw new Error("a run has no parts");
  return tabs.find((tab) => tab.name === name) ?? first;
}
