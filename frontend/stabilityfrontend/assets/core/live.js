// The one WebSocket of a page. It reconnects for ever with jitter, resumes by cursor, and pauses while nobody looks.

import { api } from "./api.js";
import { address } from "./route.js";

/** Who else listens to every message, of whatever page. @type {Set<(message: any) => void>} */
export const heard = new Set();

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 10000;
/** Hidden for this long, the socket is closed; the cursor brings back what was missed. */
const HIDDEN_MS = 15000;
/** Silent for this long, ask /healthz: a half-open connection says nothing for ever. */
const SILENT_MS = 10000;

/**
 * Live messages of one run, or of the list of runs (`runId` null).
 * `onMessage(message)` gets every message. `onState(state)` gets `connecting`, `live`, `away` or `paused`.
 * `begin`: a promise of the cursor up to which points are here already; the socket opens meanwhile, and nothing is
 * subscribed to before it. `always`: it goes on in a hidden tab.
 */
export class Live {
  constructor(runId, onMessage, onState, begin, always = false) {
    this.runId = runId;
    this.always = always;
    this.onMessage = onMessage;
    this.onState = onState;
    this.cursor = null;
    this.begin = Promise.resolve(begin || null).then((cursor) => {
      this.cursor = this.cursor || cursor;
    });
    this.clockOffset = 0;
    this.tries = 0;
    this.lost = null;
    this.closed = false;
    this.socket = null;
    this.heard = 0;
    this.visibility = () => this.onVisibility();
    this.online = () => this.hurry();
    document.addEventListener("visibilitychange", this.visibility);
    window.addEventListener("online", this.online);
    this.watch = setInterval(() => this.checkSilence(), SILENT_MS / 2);
    // Not yet: who made this has no reference to it before the constructor returns.
    queueMicrotask(() => this.connect());
  }

  /** Unix seconds on the server's clock. */
  now() {
    return Date.now() / 1000 + this.clockOffset;
  }

  connect() {
    clearTimeout(this.timer);
    if (this.closed) return;
    if (this.tries === 0) this.onState("connecting");
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}${address("/api/v1/live")}`);
    this.socket = socket;
    this.asked = false;
    socket.onopen = async () => {
      await this.begin;
      if (socket === this.socket) this.subscribe();
    };
    socket.onmessage = (event) => {
      if (socket !== this.socket) return;
      this.heard = Date.now();
      let message;
      try {
        message = JSON.parse(event.data);
      } catch {
        return; // not ours; the next one may be
      }
      if (message.type === "hello") {
        this.tries = 0;
        // The server itself may have been away and back: whoever listens had better fetch again.
        message.afterLoss = this.lost !== null;
        this.lost = null;
        if (typeof message.server_time === "number") this.clockOffset = message.server_time - Date.now() / 1000;
        this.onState("live");
      }
      if (message.type === "hello" || message.type === "storing") this.storing = message.storing || null;
      if (message.type === "storing") {
        this.onState("live"); // the banner says it
        return;
      }
      if (message.type === "error") {
        // The run's worker may not answer yet, and nobody sends anything until it is asked for again.
        this.asked = false;
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.subscribe(), this.waitMs());
      }
      // A hello's cursor is where the feed begins; with an older one of ours, what lies between follows it.
      if (message.cursor && !(message.type === "hello" && this.cursor)) this.cursor = message.cursor;
      if (message.type === "reset") this.cursor = message.cursor || null;
      this.onMessage(message);
      for (const listener of heard) listener(message);
    };
    socket.onclose = () => this.onClose(socket);
    socket.onerror = () => {};
  }

  /** Ask for the messages after a cursor, unless that has been done: a run that nobody knew may be there by now. */
  subscribe(cursor) {
    this.cursor = this.cursor || cursor || null;
    if (this.asked || !this.socket || this.socket.readyState !== WebSocket.OPEN) return;
    this.asked = true;
    this.socket.send(JSON.stringify({ type: "subscribe", run_id: this.runId, cursor: this.cursor }));
  }

  onClose(socket) {
    if (socket !== this.socket || this.closed) return;
    this.socket = null;
    if (this.paused) return;
    if (this.lost === null) this.lost = Date.now() / 1000;
    this.onState("away");
    this.timer = setTimeout(() => this.connect(), this.waitMs());
  }

  /** How long to wait before it is tried once more: longer each time until it works. */
  waitMs() {
    const wait = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(this.tries, 8));
    this.tries += 1;
    return wait * (0.5 + Math.random());
  }

  /** Start again from now: used after a `reset`, when everything was fetched again. */
  restart() {
    this.cursor = null;
    this.drop();
    this.connect();
  }

  hurry() {
    if (!this.closed && !this.socket && !this.paused) this.connect();
  }

  drop() {
    const socket = this.socket;
    this.socket = null;
    if (socket) socket.close();
  }

  onVisibility() {
    clearTimeout(this.hiddenTimer);
    if (document.hidden && !this.always) {
      this.hiddenTimer = setTimeout(() => {
        this.paused = true;
        clearTimeout(this.timer);
        this.drop();
        this.onState("paused");
      }, HIDDEN_MS);
    } else if (this.paused) {
      this.paused = false;
      this.tries = 0;
      this.connect();
    } else {
      this.hurry();
    }
  }

  async checkSilence() {
    if (this.closed || this.paused || !this.socket || Date.now() - this.heard < SILENT_MS) return;
    const socket = this.socket;
    try {
      await api.healthy();
    } catch {
      if (socket === this.socket && socket) {
        this.drop();
        this.socket = socket;
        this.onClose(socket);
      }
    }
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    clearTimeout(this.hiddenTimer);
    clearInterval(this.watch);
    document.removeEventListener("visibilitychange", this.visibility);
    window.removeEventListener("online", this.online);
    this.drop();
  }
}
