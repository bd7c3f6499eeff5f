// The address of the page: its path below /console, and its query, which holds every filter. A
// dossier is a file and has no path below it: its addresses stand behind the "#".

const BASE = "/console";

class Router {
  path = $state("");
  query = $state(new URLSearchParams());
  // A page was opened from another one, and its heading has not been drawn yet.
  wantsFocus = false;
  private isInFragment = false;

  constructor() {
    this.read();
    addEventListener("popstate", () => this.read());
  }

  /** What every address of a page begins with. */
  get base(): string {
    return this.isInFragment ? "#" : BASE;
  }

  /** Keep addresses behind the "#"; the browser follows such links by itself. */
  keepInFragment(): void {
    this.isInFragment = true;
    addEventListener("hashchange", () => this.read());
    this.read();
  }

  read(): void {
    const [path = "", search = ""] = this.isInFragment
      ? location.hash.slice(1).split("?")
      : [location.pathname.slice(BASE.length), location.search];
    this.path = decodePath(path);
    this.query = new URLSearchParams(search);
  }

  /** Go to a page; the heading of the new page gets the focus. */
  open(address: string): void {
    history.pushState(null, "", this.base + address);
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
    const path = this.isInFragment ? location.hash.split("?")[0] || "#/" : location.pathname;
    history.replaceState(null, "", path + (text ? `?${text}` : ""));
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
  return `${router.base}/${page}${words ? `?${words}` : ""}`;
}

/** A path of a playbook in an address: its slashes stay. */
export function encodePath(path: string): string {
  return path.split("/").map(encodeURIComponent).join("/");
}
