// Who looks at the page, and what that may do: what a key may not do has no button, and the bar says why.

import { api } from "../core/api.js";
import { byId, fill, h, setTitle, toast } from "../core/dom.js";
import { address } from "../core/route.js";

/** What the server said; null until then. */
let known = /** @type {import("../../../types/api").Me | null} */ (null);
let asked = /** @type {Promise<void> | null} */ (null);

/** Whether whoever looks may do what needs a scope. Until the server has said so, yes: it refuses what may not be. */
export const may = (scope) =>
  known === null || known.scopes.includes(scope) || (scope === "propose" && known.scopes.includes("command"));

/** Who looks, as the server said; null until then. */
export const me = () => known;

function ask() {
  asked =
    asked ||
    api.me().then(
      (answer) => {
        known = answer;
        // assets/me.css leaves out the buttons for the rest.
        document.documentElement.dataset.may = answer.scopes.join(" ");
      },
      (error) => {
        asked = null;
        // Wants a login: the page is on its way there. Else the server is away, and the page itself says so.
        return error.status === 401 ? new Promise(() => {}) : undefined;
      },
    );
  return asked;
}

/** Wait until the server has answered who looks: what it draws, it draws for nobody else. */
export const admitted = () => (known === null ? ask() : Promise.resolve());

async function leave() {
  let goTo = /** @type {string | null} */ (null);
  try {
    goTo = (await api.logout()).go_to;
  } catch (error) {
    toast(`Still logged in: ${error.message}`, "critical");
    return;
  }
  location.assign(goTo || address("/login")); // the provider's own page ends the sign-in there, and comes back here
}

function draw() {
  const place = byId("who");
  if (!place || known === null || known.by === "local") return;
  const only = may("command") ? "" : "read-only";
  const project = known.project === null ? "" : `project ${known.project}`;
  setTitle(
    place,
    only ? "This key has no scope “command”: rollbacks, restarts, settings and acknowledging need another one." : "",
  );
  fill(
    place,
    h("span", { id: "who-name" }, known.name),
    h("span.sub", { id: "who-may" }, [project, known.role, only].filter(Boolean).join(" · ")),
    known.by === "session" ? h("button.link", { id: "log-out", onclick: leave }, "Log out") : null,
  );
}

/** Say on the page that is open who looks at it. */
export const showMe = () => ask().then(draw);
