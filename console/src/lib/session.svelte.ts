// Who looks, and what they may do. The planner decides; pages hide what it would refuse.
import { ApiProblem, getJson, sendJson, setCsrfToken } from "./api";
import type { Whoami } from "./types";

interface AuthConfig {
  oidc: unknown;
  browser_sign_in: string | null;
}

class ConsoleSession {
  who = $state<Whoami | null>(null);
  isLoading = $state(true);
  signInPath = $state<string | null>(null);
  problem = $state<ApiProblem | null>(null);

  may(permission: string): boolean {
    return this.who?.permissions.includes(permission) ?? false;
  }

  /** The query that names whose history is meant. */
  get place(): { tenant_id: string; organization_id: string } {
    return { tenant_id: this.who?.tenant ?? "", organization_id: this.who?.organization ?? "" };
  }

  async load(): Promise<void> {
    this.problem = null;
    try {
      this.who = await getJson<Whoami>("/api/auth/whoami");
      if (this.who.kind !== "anonymous") await this.readToken();
    } catch (failure) {
      this.who = null;
      if (!(failure instanceof ApiProblem)) throw failure;
      if (failure.status !== 401) this.problem = failure;
      await this.readConfig();
    } finally {
      this.isLoading = false;
    }
  }

  async signInWithCode(code: string): Promise<void> {
    await sendJson("POST", "/auth/session", { code });
    await this.load();
  }

  async signInWithToken(token: string): Promise<void> {
    await sendJson("POST", "/auth/session", undefined, { Authorization: `Bearer ${token}` });
    await this.load();
  }

  async signOut(): Promise<void> {
    const ended = await sendJson<{ provider_logout_url: string | null }>("POST", "/auth/logout");
    setCsrfToken("");
    if (ended.provider_logout_url !== null) {
      // Else the next sign-in would ask nobody: the provider still knows the person.
      location.assign(ended.provider_logout_url);
      return;
    }
    await this.load();
  }

  private async readToken(): Promise<void> {
    const found = await getJson<{ csrf_token: string }>("/auth/session");
    setCsrfToken(found.csrf_token);
  }

  private async readConfig(): Promise<void> {
    try {
      this.signInPath = (await getJson<AuthConfig>("/api/auth/config")).browser_sign_in;
    } catch (failure) {
      if (!(failure instanceof ApiProblem)) throw failure;
      this.problem ??= failure;
    }
  }
}

export const session = new ConsoleSession();
