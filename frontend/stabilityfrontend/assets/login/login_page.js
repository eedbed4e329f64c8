// Where an API key is pasted. The server opens a session for it, whose cookie no script can read; the key is kept nowhere.

import { api } from "../core/api.js";
import { byId, fill, h, setText } from "../core/dom.js";
import { errorText } from "../core/format.js";

export class LoginPage {
  constructor(root) {
    this.form = root.querySelector("#login-form");
    this.field = h("input", { id: "login-key", type: "password", class: "field", autocomplete: "current-password" });
    fill(byId("login-field"), this.field);
    this.field.focus();
    this.onSubmit = (event) => {
      event.preventDefault();
      this.send();
    };
    this.form.addEventListener("submit", this.onSubmit);
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
      const next = new URLSearchParams(location.search).get("next") || "/";
      // Only ever to a page of ours: "//host" and "https:" would lead away.
      location.assign(/^\/(?![/\\])/.test(next) ? next : "/");
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
