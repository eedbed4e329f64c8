// A page that the server draws: how live the server is, and when to ask it again before the usual time.

import { Live } from "./core/live.js";
import { drawAgain } from "./core/parts.js";
import { drawBanner, drawPill } from "./run/header.js";

/** This soon after a run's state changed. */
const SOON_MS = 1500;

export class ServerPage {
  constructor(root) {
    this.root = root;
    this.state = "connecting";
    this.seen = new Map();
    /** @type {any} */
    this.soon = null;
    this.live = new Live(
      null,
      (message) => this.onMessage(message),
      (state) => (this.state = state),
    );
    this.tick = setInterval(() => {
      if (document.hidden || !root.isConnected) return;
      drawPill(this.live, this.state, null, null, false);
      drawBanner(this.live, null);
    }, 1000);
  }

  onMessage(message) {
    if (message.type === "reset" || (message.type === "hello" && message.afterLoss)) drawAgain();
    if (message.type !== "run") return;
    const { run } = message;
    const state = `${run.status} ${run.open_incidents}`;
    const known = this.seen.get(run.run_id);
    this.seen.set(run.run_id, state);
    if (known === state || this.soon) return;
    this.soon = setTimeout(() => {
      this.soon = null;
      drawAgain();
    }, SOON_MS);
  }

  close() {
    clearInterval(this.tick);
    clearTimeout(this.soon);
    this.live.close();
  }
}
