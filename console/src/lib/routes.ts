// Which page an address shows. Pages are loaded when they are opened.

type Module = { default: unknown };

/** What is said where a part of the console does not come: its files are new after an update. */
export const NOT_LOADED = "This part of the console cannot be loaded. Load the page again.";

interface RouteRow {
  name: string;
  section: string;
  pattern: RegExp;
  load: () => Promise<Module>;
}

export interface Route extends Omit<RouteRow, "pattern"> {
  parameters: Record<string, string>;
}

const ROWS: RouteRow[] = [
  { name: "runs", section: "runs", pattern: /^runs$/, load: () => import("../pages/Runs.svelte") },
  {
    name: "run",
    section: "runs",
    pattern: /^runs\/(?<id>\d{1,19})(?:\/(?<tab>[a-z]+))?$/,
    load: () => import("../pages/Run.svelte"),
  },
  {
    name: "approvals",
    section: "approvals",
    pattern: /^approvals$/,
    load: () => import("../pages/Approvals.svelte"),
  },
  {
    name: "workers",
    section: "workers",
    pattern: /^workers$/,
    load: () => import("../pages/Workers.svelte"),
  },
  {
    name: "health",
    section: "health",
    pattern: /^health$/,
    load: () => import("../pages/Health.svelte"),
  },
  {
    name: "playbooks",
    section: "playbooks",
    pattern: /^playbooks$/,
    load: () => import("../pages/Playbooks.svelte"),
  },
  {
    name: "new-playbook",
    section: "playbooks",
    pattern: /^new-playbook$/,
    load: () => import("../pages/Playbook.svelte"),
  },
  {
    name: "playbook",
    section: "playbooks",
    pattern: /^playbooks\/(?<path>.+)$/,
    load: () => import("../pages/Playbook.svelte"),
  },
  {
    name: "schedules",
    section: "schedules",
    pattern: /^schedules$/,
    load: () => import("../pages/Schedules.svelte"),
  },
  {
    name: "webhooks",
    section: "webhooks",
    pattern: /^webhooks$/,
    load: () => import("../pages/Webhooks.svelte"),
  },
  {
    name: "notifications",
    section: "notifications",
    pattern: /^notifications$/,
    load: () => import("../pages/Notifications.svelte"),
  },
  {
    name: "credentials",
    section: "credentials",
    pattern: /^credentials$/,
    load: () => import("../pages/Credentials.svelte"),
  },
  {
    name: "dead-letters",
    section: "dead-letters",
    pattern: /^dead-letters$/,
    load: () => import("../pages/DeadLetters.svelte"),
  },
  {
    name: "audit",
    section: "audit",
    pattern: /^audit$/,
    load: () => import("../pages/Audit.svelte"),
  },
];

export function findRoute(path: string): Route | null {
  for (const { pattern, ...row } of ROWS) {
    const match = pattern.exec(path);
    if (match) {
      const groups = Object.entries(match.groups ?? {}).filter(([, value]) => value !== undefined);
      return { ...row, parameters: Object.fromEntries(groups) as Record<string, string> };
    }
  }
  return null;
}
