// Where an API key is pasted, or a person signs in at a provider. The server opens a session, whose cookie no script can
// read; a key is kept nowhere.

import { api } from "../core/api.js";
import { byId, fill, h, setText } from "../core/dom.js";
import { errorText } from "../core/format.js";
import { address } from "../core/route.js";

/** The page that was wanted, a path within the board: "//host", "https:" and a tab between slashes would lead away. */
export function wantedPage(search, origin) {
  try {
    const url = new URL(new URLSearchParams(search).get("next") || "/", origin);
    return url.origin === origin ? url.pathname + url.search + url.hash : "/";
  } catch {
    return "/";
  }
}

const skeleton = () =>
  h(
    "main",
    h(
      "form.panel.login",
      { id: "login-form" },
      h("h1.login-brand", h("span.mark"), h("span", "Stabilityboard")),
      h("p", "Sign in. An administrator makes keys with “stabilityboard keys”."),
      h("div", { id: "login-oidc" }),
      h("label", { for: "login-key" }, "API key"),
      h("input.field", { id: "login-key", type: "password", autocomplete: "current-password" }),
      h("div", { id: "login-error", role: "alert" }),
      h("button.button.primary", { id: "login-send", type: "submit" }, "Open the board"),
    ),
  );

export class LoginPage {
  static skeleton = () => [skeleton()];

  constructor(root) {
    this.form = root.querySelector("#login-form");
    this.field = byId("login-key");
    this.field.focus();
    this.onSubmit = (event) => {
      event.preventDefault();
      this.send();
    };
    this.form.addEventListener("submit", this.onSubmit);
    this.offer();
  }

  /** Draw the button of the provider, where there is one, and why a sign-in there was refused. */
  async offer() {
    const refused = new URLSearchParams(location.search).get("refused");
    let oidc = /** @type {import("../../../types/api").OidcWay | null} */ (null);
    try {
      oidc = (await api.waysIn(refused)).oidc;
    } catch {
      return; // the server is away: the key's own button says so
    }
    const place = byId("login-oidc");
    if (!oidc || !place) return;
    // Who was refused there is still signed in there: the same person again would be refused again.
    const other = refused === "no_role";
    const query = new URLSearchParams({ next: wantedPage(location.search, location.origin) });
    if (other) query.set("other", "true");
    const button = h(
      "a.button.primary",
      { id: "login-provider", href: `${oidc.start}?${query}` },
      `Sign in with ${oidc.name}${other ? " as another person" : ""}`,
    );
    fill(
      place,
      oidc.refusal ? h("div.note.critical", { id: "login-refused", role: "alert" }, oidc.refusal) : null,
      oidc.trouble && oidc.trouble !== oidc.refusal
        ? h("div.note.warning", { id: "login-trouble", role: "status" }, oidc.trouble)
        : null,
      button,
      h("div.login-or", "or with a key"),
    );
    byId("login-send")?.classList.remove("primary");
    if (document.activeElement === this.field && !this.field.value) button.focus();
  }

  async send() {
    const { field } = this;
    const button = byId("login-send");
    const key = field.value.trim();
    if (!key) {
      setText(byId("login-error"), "Paste a key first.");
      return;
    }
    button.disabled = true;
    try {
      await api.login(key);
      location.assign(address(wantedPage(location.search, location.origin)));
    } catch (error) {
      setText(byId("login-error"), errorText(error));
      button.disabled = false;
      field.select();
    }
  }

  close() {
    this.form.removeEventListener("submit", this.onSubmit);
  }
}
