// Where an API key is pasted. The server opens a session for it, whose cookie no script can read; the key is kept nowhere.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});

  class LoginPage {
    constructor(root) {
      this.form = root.querySelector("#login-form");
      this.field = S.h("input", {
        id: "login-key",
        type: "password",
        class: "field",
        autocomplete: "current-password",
      });
      S.fill(S.byId("login-field"), this.field);
      this.field.focus();
      this.onSubmit = (event) => {
        event.preventDefault();
        this.send();
      };
      this.form.addEventListener("submit", this.onSubmit);
    }

    async send() {
      const { field } = this;
      const button = S.byId("login-send");
      const key = field.value.trim();
      if (!key) {
        S.text(S.byId("login-error"), "Paste a key first.");
        return;
      }
      button.disabled = true;
      try {
        await S.api.login(key);
        const next = new URLSearchParams(location.search).get("next") || "/";
        // Only ever to a page of ours: "//host" and "https:" would lead away.
        location.assign(/^\/(?![/\\])/.test(next) ? next : "/");
      } catch (error) {
        S.text(S.byId("login-error"), S.errorText(error));
        button.disabled = false;
        field.select();
      }
    }

    close() {
      this.form.removeEventListener("submit", this.onSubmit);
    }
  }

  S.LoginPage = LoginPage;
})();
