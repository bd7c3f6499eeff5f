// The address of the page: its path below /console, and its query, which holds every filter.

const BASE = "/console";

class Router {
  path = $state("");
  query = $state(new URLSearchParams());
  // A page was opened from another one, and its heading has not been drawn yet.
  wantsFocus = false;

  constructor() {
    this.read();
    addEventListener("popstate", () => this.read());
  }

  read(): void {
    this.path = decodePath(location.pathname.slice(BASE.length));
    this.query = new URLSearchParams(location.search);
  }

  /** Go to a page; the heading of the new page gets the focus. */
  open(address: string): void {
    history.pushState(null, "", BASE + address);
    this.read();
    scrollTo(0, 0);
    this.wantsFocus = true;
  }

  /** Change filters of this page without a new entry in the browser's history. */
  setQuery(changes: Record<string, string | number | null>): void {
    const next = new URLSearchParams(this.query);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === "") next.delete(name);
      else next.set(name, String(value));
    }
    const text = next.toString();
    history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
    this.query = next;
  }

  get(name: string): string {
    return this.query.get(name) ?? "";
  }
}

function decodePath(path: string): string {
  try {
    return decodeURIComponent(path).replace(/^\/+|\/+$/g, "");
  } catch {
    return path.replace(/^\/+|\/+$/g, "");
  }
}

export const router = new Router();

/** Give a heading the focus when its page was opened from another one: readers begin there. */
export function focusHeading(heading: HTMLElement): void {
  if (!router.wantsFocus) return;
  router.wantsFocus = false;
  heading.focus();
}

/** Links of the console change the page without loading it anew. */
export function followLinks(event: MouseEvent): void {
  if (event.defaultPrevented || event.button !== 0) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = (event.target as Element).closest?.("a");
  if (!link || link.target || link.hasAttribute("download")) return;
  const address = new URL(link.href, location.href);
  if (address.origin !== location.origin || !address.pathname.startsWith(`${BASE}/`)) return;
  event.preventDefault();
  router.open(address.pathname.slice(BASE.length) + address.search);
}

export function link(
  page: string,
  query: Record<string, string | number | undefined> = {},
): string {
  const words = new URLSearchParams(
    Object.entries(query).flatMap(([name, value]): [string, string][] =>
      value === undefined ? [] : [[name, String(value)]],
    ),
  ).toString();
  return `${BASE}/${page}${words ? `?${words}` : ""}`;
}

/** A path of a playbook in an address: its slashes stay. */
export function encodePath(path: string): string {
  return path.split("/").map(encodeURIComponent).join("/");
}
