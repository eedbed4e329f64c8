// Alerting: where alerts go, which of them nobody gets for now, and who would get an incident.

import { api } from "../core/api.js";
import { choice, grow, panelHead } from "../core/controls.js";
import { byId, fill, h, patch, pressed, setClass, setShown, setText, tableHead, toast } from "../core/dom.js";
import { ago, duration, errorText, formatCount, inUtc, moment } from "../core/format.js";
import { Live } from "../core/live.js";
import { may } from "../navigation/account.js";
import { frame, livePill, morePanels } from "../navigation/rail.js";
import { drawBanner, drawPill } from "../run/header.js";

// -- Mutes: which alerts nobody gets for a while, by whom and why; a form for a new one.

/** How long a new mute may last, seconds. */
const LENGTHS = [
  [3600, "1 hour"],
  [4 * 3600, "4 hours"],
  [12 * 3600, "12 hours"],
  [86400, "1 day"],
  [7 * 86400, "7 days"],
  [30 * 86400, "30 days"],
];
const STATES = { active: "Active", pending: "Planned", expired: "Ended" };
/** Labels that the form has a field for, and what stands in it while it is empty. */
const FIELDS = [
  ["run", "any run, or nightly-*"],
  ["project", "any project"],
  ["kind", "any kind, or spike"],
  ["node", "any node, or rack7-*"],
];

/** What a mute covers, in words. */
const matchWords = (match) =>
  Object.entries(match)
    .map(([label, value]) => `${label} ${[value].flat().join(" or ")}`)
    .join(", ");

function row(mute, now, end) {
  const left = mute.state === "active" ? `${duration(mute.ends - now)} left` : ago(now - mute.ends);
  return h(
    "tr",
    { data: { mute: mute.mute_id }, class: mute.state === "expired" ? "past" : "" },
    h("td", h("span", { class: `chip ${mute.state === "active" ? "accent" : ""}` }, STATES[mute.state])),
    h("td.mono", matchWords(mute.match)),
    h("td", mute.reason),
    h("td", mute.owner),
    h(
      "td",
      { title: `${inUtc(mute.starts)} to ${inUtc(mute.ends)}` },
      mute.state === "pending" ? `from ${moment(mute.starts)}` : `${moment(mute.ends)} (${left})`,
    ),
    h(
      "td.end",
      mute.state !== "expired" && may("command") && h("button.button", { onclick: () => end(mute) }, "End now"),
    ),
  );
}

/** The table of mutes; `end` ends one. */
function mutesOf({ mutes }, end) {
  if (!mutes.length) return h("p.empty", "Nothing is muted.");
  const now = Date.now() / 1000;
  return h(
    "table.table",
    tableHead(["State", "Covers", "Reason", "By", "Until", ""]),
    h(
      "tbody",
      mutes.map((mute) => row(mute, now, end)),
    ),
  );
}

/** The form for a new mute. `given`: label -> pattern to begin with; `save` gets `{match, reason, ends}`, may throw. */
function muteForm(place, given, save) {
  const fields = FIELDS.map(([label, hint]) => [
    label,
    h("input.field", { id: `mute-${label}`, placeholder: hint, autocomplete: "off", value: given[label] || "" }),
  ]);
  const length = h(
    "select.choice-list",
    { id: "mute-length" },
    LENGTHS.map(([seconds, text]) => h("option", { value: seconds }, text)),
  );
  const reason = h("input.field", {
    id: "mute-reason",
    placeholder: "Reason, for the next person on call",
    autocomplete: "off",
    maxlength: 300,
  });
  const trouble = h("span.text-critical", { id: "mute-trouble", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    const match = Object.fromEntries(
      fields.map(([label, field]) => [label, field.value.trim()]).filter(([, value]) => value),
    );
    if (!Object.keys(match).length) {
      setText(trouble, "Say what to mute: fill in at least one of run, project, kind and node. * stands for all.");
      return;
    }
    if (!reason.value.trim()) {
      setText(trouble, "A reason is needed: the next person on call reads it.");
      reason.focus();
      return;
    }
    setText(trouble, "");
    try {
      await save({ match, reason: reason.value, ends: Date.now() / 1000 + Number(length.value) });
      for (const [, field] of fields) field.value = "";
      reason.value = "";
    } catch (error) {
      setText(trouble, [error.message, error.hint].filter(Boolean).join(". "));
    }
  };
  const labelled = (words, id, field) => h("label.alerting-field", { for: id }, h("span", words), field);
  fill(
    place,
    h(
      "form.alerting-form",
      { id: "mute-form", data: { needs: "command" }, onsubmit: submit },
      fields.map(([label, field]) => labelled(label, field.id, field)),
      labelled("for", "mute-length", length),
      labelled("reason", "mute-reason", reason),
      h("button.button.primary", { type: "submit", id: "mute-save" }, "Mute"),
      trouble,
    ),
  );
  if (Object.keys(given).length) reason.focus();
}

// -- How useful alerts were, as people rated them on the pages of incidents.

const percent = (share) => (share === null ? "–" : `${Math.round(100 * share)} %`);
/** Alerts a day are few or very few: two digits tell enough. */
const perDay = (rate) => (rate === null ? "–" : rate === 0 ? "0" : Number(rate.toPrecision(2)).toString());

const table = (heads, rows) => h("table.table", tableHead(heads), h("tbody", rows));

/** The tables by kind and by receiver. */
function precisionOf(answer) {
  const { days, job_days, noise_per_job_day, kinds, receivers } = answer;
  if (!kinds.length) return [h("p.empty", `No incident alerted anybody in the last ${days} days.`)];
  const rated = kinds.reduce((sum, one) => sum + one.useful + one.noise, 0);
  const summary = h(
    "p.sub",
    { id: "precision-summary" },
    !rated
      ? "No alert is rated yet: “Useful” and “Noise” are on the page of each incident."
      : noise_per_job_day === null
        ? "No job ran in that time."
        : `${perDay(noise_per_job_day)} alerts rated as noise a job and day, over ${job_days.toFixed(1)} days of jobs.`,
  );
  const rows = kinds.map((one) =>
    h(
      "tr",
      { data: { kind: one.kind } },
      h("td", one.label),
      h("td", formatCount(one.incidents)),
      h("td", formatCount(one.useful)),
      h("td", formatCount(one.noise)),
      h("td", percent(one.precision)),
      h("td", perDay(one.useful + one.noise ? one.noise_per_job_day : null)),
    ),
  );
  const by = receivers.map((one) =>
    h(
      "tr",
      { data: { receiver: one.name } },
      h("td", one.name),
      h("td", formatCount(one.useful)),
      h("td", formatCount(one.noise)),
      h("td", percent(one.precision)),
    ),
  );
  return [
    summary,
    table(["Kind", "Incidents", "Useful", "Noise", "Precision", "Noise a job and day"], rows),
    receivers.length ? table(["Receiver", "Useful", "Noise", "Precision"], by) : null,
  ];
}

// -- The receivers of alerts: what each was sent, and what was held back and why.

/** What became of an event -> words, in the order in which they are told. The first ones are never left out. */
const OUTCOMES = [
  ["sent", "sent"],
  ["retries", "tried again"],
  ["refused", "refused by the receiver"],
  ["given_up", "given up after an hour"],
  ["unsure", "may have been lost in a crash"],
  ["muted", "muted"],
  ["not_yet", "waiting to be escalated"],
  ["acknowledged_before", "acknowledged before it was escalated"],
  ["no_route", "no route leads here"],
  ["below_min_severity", "below its least severity"],
  ["grouped", "counted in a summary"],
  ["known", "known there already"],
  ["summaries", "summaries"],
  ["follows_cause", "followed from another"],
  ["in_train", "one of a train"],
  ["info_only", "information only"],
];
const BAD = new Set(["refused", "given_up", "unsure"]);

/** A receiver's counts in words: `[text, isBad]`, without those that nobody asks about (duplicates, unchanged). */
const outcomes = (counts) =>
  OUTCOMES.filter(([name]) => counts[name]).map(([name, words]) => [
    `${formatCount(counts[name])} ${words}`,
    BAD.has(name),
  ]);

const SETTINGS = [
  ["Slack with buttons", "STABILITY_SLACK_BOT_TOKEN, STABILITY_SLACK_APP_TOKEN and STABILITY_SLACK_CHANNEL"],
  ["Slack, messages only", "STABILITY_SLACK_WEBHOOK_URL"],
  ["PagerDuty", "STABILITY_PAGERDUTY_ROUTING_KEY"],
  ["Alertmanager", "STABILITY_ALERTMANAGER_URL"],
  ["a signed webhook", "STABILITY_WEBHOOK_URL and STABILITY_WEBHOOK_SECRET"],
  ["mail, Teams, Discord, ntfy and the rest", "STABILITY_APPRISE_URLS"],
];

function none() {
  return h(
    "div.empty",
    h("p", "No receiver is set up, so no alerts are sent. Set one of these variables and restart the server:"),
    h(
      "ul",
      SETTINGS.map(([name, variable]) => h("li", `${name}: `, h("code", variable))),
    ),
  );
}

/** The table of receivers. */
function receiversOf({ receivers }) {
  if (!receivers.length) return none();
  return h(
    "table.table",
    tableHead(["Receiver", "Channel", "Least severity", "Alerts"]),
    h(
      "tbody",
      receivers.map((one) => {
        const words = outcomes(one.counts);
        return h(
          "tr",
          { data: { receiver: one.name } },
          h("td", h("strong", one.name)),
          h("td", one.channel),
          h("td", one.min_severity),
          h(
            "td",
            words.length
              ? words.flatMap(([text, bad], at) => [
                  at ? " · " : "",
                  h("span", { class: bad ? "text-critical" : "" }, text),
                ])
              : h("span.sub", "none since the server started"),
          ),
        );
      }),
    ),
  );
}

// -- The editor of the routes, and who would get an incident by them, saved or not.

/** What an empty editor offers. */
const exampleOf = (receivers) => {
  const [first, last] = [receivers[0]?.name || "slack", receivers.at(-1)?.name || "pagerduty"];
  return `# The first route that fits decides. Labels: run, project, kind, severity, about, node, rank, dataset, metric.
routes:
  - match: {severity: critical}
    receivers: [${[...new Set([first, last])].join(", ")}]
  - match: {project: "scratch-*"}
    receivers: []          # on the page only
  - receivers: [${first}]
`;
};

const GETS = { now: ["now", "good"], later: ["later", "warning"], no: ["no", "quiet"] };

/** Who gets an incident: a table, and what it was matched by. */
function previewOf(answer) {
  const { labels, routes, receivers } = answer;
  const words = Object.entries(labels).map(([label, value]) => `${label} ${value}`);
  return [
    h(
      "p.sub",
      `Matched by ${words.join(", ")}. `,
      routes.length ? `Fits route ${routes.join(", then ")}.` : "No route is set: each receiver gets every alert.",
    ),
    receivers.length === 0
      ? h("p.sub", "No receiver is set up, so no alert would be sent.")
      : h(
          "table.table",
          tableHead(["Receiver", "Gets it", "Why"]),
          h(
            "tbody",
            receivers.map((one) =>
              h(
                "tr",
                { data: { receiver: one.receiver, gets: one.gets } },
                h("td", one.receiver),
                h("td", h("span", { class: `chip ${GETS[one.gets][1]}` }, GETS[one.gets][0])),
                h("td", one.why || "at once"),
              ),
            ),
          ),
        ),
  ];
}

/** The editor. What is typed is kept until it is saved or given back, whatever comes from the server. */
class RoutesEditor {
  /** @param {{save: (text: string, version: number) => Promise<any>, edited: () => void}} doing */
  constructor(place, tools, doing) {
    this.doing = doing;
    this.routes = /** @type {any} */ (null);
    this.receivers = /** @type {any[]} */ ([]);
    this.text = h("textarea.field.mono", {
      id: "routes-text",
      rows: 12,
      spellcheck: "false",
      "aria-label": "Routes, YAML",
      oninput: () => this.typed(),
    });
    this.about = h("p.sub", { id: "routes-about" });
    this.trouble = h("p.text-critical", { id: "routes-trouble", role: "alert" });
    const button = (id, words, click, kind) =>
      h("button", { id, class: `button ${kind || ""}`, onclick: click }, words);
    this.save = button("routes-save", "Save", () => this.onSave(), "primary");
    this.revert = button("routes-revert", "Discard changes", () => this.give(this.routes.text));
    this.example = button("routes-example", "Insert an example", () => this.give(exampleOf(this.receivers)));
    fill(tools, this.example, this.revert, this.save);
    fill(place, this.about, this.text, this.trouble);
  }

  /** Whether the text is another one than what is stored. */
  get changed() {
    return this.routes !== null && this.text.value !== this.routes.text;
  }

  give(text) {
    this.text.value = text;
    this.typed();
  }

  typed() {
    setText(this.trouble, "");
    this.draw();
    this.doing.edited();
  }

  /** What the server has now. */
  take(routes, receivers) {
    const untouched = !this.changed;
    const fresh = this.routes === null || this.routes.version !== routes.version;
    this.receivers = receivers;
    if (fresh && !untouched && this.routes !== null)
      setText(
        this.trouble,
        `${routes.changed_by} saved other routes in between: copy yours, and discard your changes.`,
      );
    const before = this.routes;
    this.routes = untouched || before === null ? routes : { ...routes, version: before.version };
    if (untouched) this.text.value = routes.text;
    this.draw();
  }

  draw() {
    const { routes } = this;
    const fixed = routes.source === "file" || !may("command");
    this.text.readOnly = fixed;
    const rows = Math.min(40, Math.max(6, this.text.value.split("\n").length + 1));
    if (this.text.rows !== rows) this.text.rows = rows;
    setShown(this.save, !fixed && this.changed);
    setShown(this.revert, !fixed && this.changed);
    setShown(this.example, !fixed && !this.text.value.trim() && this.receivers.length > 0);
    const written = routes.changed
      ? `, changed by ${routes.changed_by} ${ago(Date.now() / 1000 - routes.changed)}`
      : "";
    const about = {
      file: `From the file ${routes.file}: change it there and restart the server.`,
      none: "No route is set: each receiver gets every alert of its lowest severity and above.",
      page: `Version ${routes.version}${written}.`,
    };
    setText(this.about, about[routes.source]);
    if (routes.problem && !this.changed)
      setText(this.trouble, `Not used, each receiver gets everything. ${routes.problem}`);
  }

  async onSave() {
    this.save.disabled = true;
    try {
      const stored = await this.doing.save(this.text.value, this.routes.version);
      this.routes = stored;
      this.text.value = stored.text;
      setText(this.trouble, "");
    } catch (error) {
      setText(this.trouble, errorText(error));
    }
    this.save.disabled = false;
    this.draw();
  }
}

/** The server is asked again this often. */
const AGAIN_MS = 5000;
/** After the last key in the editor. */
const TYPED_MS = 400;
/** Precision is of the last so many days. */
const PRECISION_DAYS = 30;
/** Incidents to try routes on. */
const INCIDENTS = 50;

function skeleton() {
  const panel = (name, title, note) =>
    h(
      "section.panel",
      { "aria-label": title },
      panelHead(title, h("span.sub", note), grow(), h("div", { id: `${name}-tools` })),
      h("div.alerting-body", { id: `alerting-${name}` }),
    );
  return frame(
    [h("h1.crumb-here", "Alerting"), h("span.chip", { id: "alerting-state" }), livePill()],
    h(
      "main.list.stack",
      h("div.note.critical", { id: "alerting-trouble", role: "alert", hidden: true }),
      panel("receivers", "Receivers", "Destinations of alerts, and deliveries since the server started"),
      panel("mutes", "Mutes", "Matching incidents send no alert until the end; then all that are still open are sent"),
      panel("routes", "Routes", "The first matching route decides who gets an incident"),
      panel("preview", "Who would get this?", "The result if this incident opened now"),
      panel("precision", "Precision", "Alerts of the last 30 days, as rated on the pages of incidents"),
      morePanels(),
    ),
  );
}

export class AlertingPage {
  static skeleton = skeleton;

  constructor(root) {
    this.root = root;
    this.state = "connecting";
    this.incidents = /** @type {any[]} */ ([]);
    this.tried = /** @type {any} */ (null);
    this.asking = 0;
    this.typing = /** @type {any} */ (null);
    this.again = /** @type {any} */ (null);
    this.editor = new RoutesEditor(byId("alerting-routes"), byId("routes-tools"), {
      save: (text, version) => this.saveRoutes(text, version),
      edited: () => {
        clearTimeout(this.typing);
        this.typing = setTimeout(() => this.preview(), TYPED_MS);
      },
    });
    this.mutes = h("div");
    const place = h("div");
    fill(byId("alerting-mutes"), this.mutes, place);
    muteForm(place, Object.fromEntries(new URLSearchParams(location.search)), (mute) => this.mute(mute));
    this.choice = choice(
      byId("preview-tools"),
      "preview-incident",
      "Incident",
      (value) => {
        this.tried = this.incidents.find((one) => one.incident_id === value);
        this.preview();
      },
      true,
    );
    this.live = new Live(
      null,
      () => {},
      (state) => (this.state = state),
    );
    this.fetch();
    this.fetchIncidents();
    this.fetchPrecision();
    this.tick = setInterval(() => {
      drawPill(this.live, this.state, null, null, false);
      drawBanner(this.live, null);
    }, 1000);
  }

  async fetch() {
    clearTimeout(this.again);
    try {
      this.take(await api.alerting());
      setShown(byId("alerting-trouble"), false);
    } catch (error) {
      if (this.gone) return;
      setText(byId("alerting-trouble"), errorText(error));
      setShown(byId("alerting-trouble"), true);
    }
    if (!this.gone) this.again = setTimeout(() => this.fetch(), AGAIN_MS);
  }

  take(answer) {
    if (this.gone) return;
    this.answer = answer;
    const active = answer.mutes.filter((mute) => mute.state === "active").length;
    const words = [answer.receivers.length ? (answer.sending ? "Sending" : "Not sending") : "No receiver"];
    if (active) words.push(`${active} muted`);
    setText(byId("alerting-state"), words.join(" · "));
    setClass(byId("alerting-state"), `chip ${answer.sending || !answer.receivers.length ? "" : "warning"}`);
    if (!pressed()) {
      patch(byId("alerting-receivers"), receiversOf(answer));
      patch(
        this.mutes,
        mutesOf(answer, (mute) => this.endMute(mute)),
      );
    }
    this.editor.take(answer.routes, answer.receivers);
  }

  async fetchIncidents() {
    try {
      this.incidents = (await api.allIncidents({ limit: INCIDENTS })).incidents;
    } catch {
      return; // the trouble is on the page already; the next look asks again
    }
    if (this.gone) return;
    this.tried = this.tried || this.incidents[0] || null;
    this.choice.options(
      this.incidents.map((one) => ({
        value: one.incident_id,
        text: `${one.title} · ${one.run_name || one.run_id}`,
      })),
      this.tried?.incident_id || "",
    );
    this.preview();
  }

  async fetchPrecision() {
    try {
      const answer = await api.alertPrecision(PRECISION_DAYS);
      if (!this.gone) fill(byId("alerting-precision"), precisionOf(answer));
    } catch (error) {
      if (!this.gone) fill(byId("alerting-precision"), h("p.text-critical", errorText(error)));
    }
  }

  async preview() {
    const place = byId("alerting-preview");
    if (!this.tried) {
      patch(place, h("p.empty", "No run has had an incident yet."));
      return;
    }
    const unsaved = this.editor.changed;
    this.asking += 1;
    const mine = this.asking;
    try {
      const answer = await api.alertPreview({
        run: this.tried.run_id,
        incident: this.tried.incident_id,
        ...(unsaved ? { text: this.editor.text.value } : {}),
      });
      if (this.gone || mine !== this.asking) return; // of an older question
      const note = unsaved && h("p.note", "By the routes above, which are not saved yet.");
      fill(place, note, previewOf(answer));
    } catch (error) {
      if (!this.gone && mine === this.asking) fill(place, h("p.text-critical", errorText(error)));
    }
  }

  async saveRoutes(text, version) {
    const stored = await api.saveRoutes({ text, version });
    toast(text.trim() ? "The routes hold from now on." : "No routes: each receiver gets everything.", "good");
    this.fetch();
    setTimeout(() => this.preview());
    return stored;
  }

  async mute(mute) {
    const answer = await api.mute(mute);
    this.take({ ...this.answer, ...answer });
    toast(`Muted: ${matchWords(mute.match)}.`, "good");
    this.preview();
  }

  async endMute(mute) {
    try {
      this.take({ ...this.answer, ...(await api.endMute(mute.mute_id)) });
      toast("Ended. What is still open is sent now.", "good");
      this.preview();
    } catch (error) {
      toast(errorText(error), "critical");
    }
  }

  close() {
    this.gone = true;
    clearInterval(this.tick);
    clearTimeout(this.again);
    clearTimeout(this.typing);
    this.live.close();
  }
}
