// The batches around an incident: a bar for each step that the ranks held, and their worst samples. All of it is a stranger's
// text: it is only ever shown as text.

import { api } from "../core/api.js";
import { asFinite, asList, asText, asWholeText } from "../core/as_type.js";
import { h, toast } from "../core/dom.js";
import { clock, errorText, formatCount, formatValue, plural } from "../core/format.js";
import { offers } from "../core/kinds.js";

// -- What the job's ranks answered about the batches that they keep: which order is looked at, asking for it, and giving one.

/** Between two tries for what is not there yet. */
const AGAIN_MS = 3000;

export class KeptBatches {
  constructor(page) {
    this.page = page;
    /** Who keeps batches, and the newest answers without their samples. @type {import("../../../types/api").BatchAnswers | null} */
    this.offer = null;
    /** Order -> its answer: with samples, or without where this viewer may not see them, or it is too long ago. */
    this.answers = new Map();
    /** The order that somebody chose. */
    this.chosen = null;
    /** All samples are shown, not the first ones. */
    this.all = false;
  }

  /** The orders about this incident, the newest first. */
  orders() {
    return [...this.page.commands.values()]
      .filter((one) => one.kind === "show_batches" && one.incident_id === this.page.incidentId)
      .sort((a, b) => b.issued - a.issued);
  }

  /** The order that is looked at: what somebody chose, else the first that has the step where it began, else the newest. */
  order() {
    const orders = this.orders();
    const chosen = orders.find((one) => one.command_id === this.chosen);
    const { onset_step: onset } = this.page.incident;
    const holds = (one) => {
      const answer = this.answered(one.command_id);
      return answer !== null && answer.first !== null && answer.first <= onset && onset <= answer.last;
    };
    return chosen || orders.find(holds) || orders[0] || null;
  }

  /** What was answered to an order, as far as it is known. */
  answered(request) {
    return (
      this.answers.get(request) ||
      asList(this.offer && this.offer.answers).find((one) => one.request === request) ||
      null
    );
  }

  /** Why nobody can look at batches here, "" where somebody can, null where it is not offered at all. */
  refusal() {
    if (!this.offer || !asList(this.offer.ranks).length || !offers(this.page.incident, "show_batches")) return null;
    const under = this.orders().find((one) => !one.progress.ended);
    return under ? under.progress.line : "";
  }

  /** Ask who keeps batches, and for the samples that are looked at. */
  async refresh() {
    const { page } = this;
    if (!offers(page.incident, "show_batches") || this.asking) return;
    this.asking = true;
    clearTimeout(this.again);
    try {
      this.offer = await api.batchAnswers(page.id);
      const order = this.order();
      const known = order && asList(this.offer.answers).find((one) => one.request === order.command_id);
      if (order && order.progress.ended && known && !this.answers.has(order.command_id))
        this.answers.set(order.command_id, await api.batchSamples(page.id, order.command_id, known));
    } catch {
      if (!page.gone) this.again = setTimeout(() => this.refresh(), AGAIN_MS);
    } finally {
      this.asking = false;
    }
    if (!page.gone) page.draw();
  }

  async give() {
    const { page } = this;
    if (this.giving) return;
    this.giving = true;
    page.draw();
    try {
      const command = await api.order(page.id, {
        kind: "show_batches",
        incident_id: page.incidentId,
        reason: `asked for on the page of “${asText(page.incident.title).slice(0, 200)}”`,
      });
      this.chosen = command.command_id;
      page.setCommand(command);
    } catch (error) {
      toast(errorText(error), "warning");
    } finally {
      this.giving = false;
      page.draw();
    }
  }

  choose(request) {
    this.chosen = request;
    this.all = false;
    this.refresh();
  }

  close() {
    clearTimeout(this.again);
  }
}

/** Samples shown before somebody asks for all, and characters of a text before it is unfolded. */
const SAMPLES = 12;
const BRIEF = 160;
/** Lowest and highest bar, percent of the strip. */
const LOW = 6;
const HIGH = 100;
/** A sample of which more than this share is repetition is marked. */
const REPETITIVE = 0.5;

const CONTROL = /[^\P{Cc}\t\n]/gu;

/** A list as long as it is: the server bounds steps and samples. */
const every = (value) => (Array.isArray(value) ? value : []);

/** A text with what can't be seen in it made visible: NUL is ␀. */
export const visible = (text) =>
  text.replace(CONTROL, (char) => {
    const code = char.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : "\ufffd";
  });

/** Where a step lies: in the incident, right before it (its batch spoils the weights that the next step shows), or neither. */
export function placeOf(step, incident) {
  const until = asFinite(incident.until_step);
  if (step === incident.onset_step - 1) return "before";
  // The band ends where the metric was back.
  const within = step === incident.onset_step || (step > incident.onset_step && (until === null || step < until));
  return within ? "within" : "";
}

/** Whether the batch of the step where it began had left the rings: a sentence, "" where it is there or nothing is known. */
export function leftWords(answer, incident) {
  const onset = asFinite(incident.onset_step);
  if (onset === null || answer.first === null || (answer.first <= onset && onset <= answer.last)) return "";
  const held = `The ranks held steps ${formatCount(answer.first)} to ${formatCount(answer.last)}`;
  if (onset > answer.last) return `${held}; this began at ${formatCount(onset)}, after they were asked.`;
  return (
    `${held} when they were asked; this began at ${formatCount(onset)}, so its batch had left. ` +
    `To have it next time: run.keep_batches(last=${answer.last - onset + 1}) or more, with on_spike=True.`
  );
}

const lossWords = (loss) => (typeof loss === "string" ? loss : loss === null ? "" : formatValue(loss));
const shareWords = (share) => (share === null ? "" : `${(100 * share).toFixed(0)} %`);

function barTitle(one, incident) {
  const place = placeOf(one.step, incident);
  return [
    `step ${formatCount(one.step)}${one.discarded ? ", on the discarded branch" : ""}`,
    place === "before" ? "right before the incident" : place === "within" ? "within the incident" : "",
    one.samples ? plural(one.samples, "sample") : "not looked at",
    one.loss === null ? "" : `mean loss ${formatValue(one.loss)}`,
    one.worst === null ? "" : `worst ${formatValue(one.worst)}`,
    one.nonfinite ? `${formatCount(one.nonfinite)} not finite` : "",
    one.repeated === null ? "" : `up to ${shareWords(one.repeated)} repeated`,
    one.samples && !one.whole ? "not all samples were looked at" : "",
  ]
    .filter(Boolean)
    .join("; ");
}

/** A bar for each step: as high as its worst sample; full where a loss is no number. */
function strip(answer, incident) {
  const batches = every(answer.batches);
  const heights = batches.map((one) => asFinite(one.worst)).filter((one) => one !== null);
  const [low, high] = [Math.min(...heights), Math.max(...heights)];
  if (!batches.length) return null;
  const of = (one) => {
    if (one.nonfinite) return HIGH;
    const worst = asFinite(one.worst);
    return worst === null || high <= low ? LOW : LOW + ((HIGH - LOW) * (worst - low)) / (high - low);
  };
  return h(
    "div.batch-strip",
    h("span.sub", `Largest loss of a sample, by step${heights.length ? `; highest ${formatValue(high)}` : ""}`),
    h(
      "div.batch-bars",
      { role: "img", "aria-label": "Largest loss of a sample in each batch that was kept" },
      batches.map((one) =>
        h("i", {
          class: [placeOf(one.step, incident), one.nonfinite ? "not-finite" : "", one.discarded ? "discarded" : ""]
            .filter(Boolean)
            .join(" "),
          style: { height: `${of(one).toFixed(1)}%` },
          title: barTitle(one, incident),
          data: { step: String(one.step) },
        }),
      ),
    ),
    h(
      "div.batch-ends.sub",
      h("span", `step ${formatCount(batches[0].step)}`),
      h("span", formatCount(batches[batches.length - 1].step)),
    ),
  );
}

function content(sample) {
  const text = visible(asWholeText(sample.text));
  const shape = every(sample.shape).length ? h("span.chip", sample.shape.join(" × ")) : null;
  if (!text) return shape || h("span.sub", "–");
  const brief = text.length > BRIEF ? `${text.slice(0, BRIEF)} …` : text;
  if (brief === text && !text.includes("\n")) return [shape, h("bdi.sample-text", text)];
  return [
    shape,
    h(
      "details.sample-fold",
      h("summary", h("bdi.sample-text", brief.replace(/\s+/g, " "))),
      h("pre.stack-text.sample-whole", { tabindex: "0", "aria-label": "Whole text of the sample" }, text),
    ),
  ];
}

function row(sample, incident) {
  const place = placeOf(sample.step, incident);
  const repeated = asFinite(sample.repeated);
  return h(
    "tr",
    { class: place, data: { step: String(sample.step) } },
    h(
      "td.num",
      formatCount(sample.step),
      place === "before" ? h("span.sub", " right before") : null,
      sample.discarded ? h("span.sub", " discarded") : null,
    ),
    h("td.num", formatCount(sample.rank)),
    h("td", { class: `num strong${typeof sample.loss === "string" ? " bad" : ""}` }, lossWords(sample.loss)),
    h(
      "td",
      {
        class: `num${repeated !== null && repeated >= REPETITIVE ? " bad strong" : ""}`,
        title: repeated === null ? "" : `of ${plural(sample.tokens, "token")}`,
      },
      shareWords(repeated),
    ),
    h("td.words", asText(sample.dataset)),
    h("td.words", asText(sample.id)),
    h("td.content", content(sample)),
  );
}

/** The samples in the order in which they are read: those of the incident's steps first, else the worst first. */
export function inOrder(samples, incident) {
  const rank = (sample) => ["within", "before", ""].indexOf(placeOf(sample.step, incident));
  return [...samples].sort((a, b) => rank(a) - rank(b)); // a stable sort: the server's order stays
}

function sampleTable(answer, incident, all) {
  const samples = inOrder(every(answer.samples), incident);
  if (!samples.length) return null;
  return h(
    "table.table.dense.samples",
    h(
      "thead",
      h(
        "tr",
        ["Step", "Rank", "Loss", "Repeated"].map((word) =>
          h(
            "th.num",
            {
              scope: "col",
              title: word === "Repeated" ? "Share of the tokens that lie in five in a row which came before" : null,
            },
            word,
          ),
        ),
        ["Data set", "Sample", "Content"].map((word) => h("th", { scope: "col" }, word)),
      ),
    ),
    h(
      "tbody",
      samples.slice(0, all ? samples.length : SAMPLES).map((sample) => row(sample, incident)),
    ),
  );
}

/** Everything about one answer, and what is missing in it. */
export function batchParts(answer, incident, all, toggle) {
  const left = leftWords(answer, incident);
  const samples = every(answer.samples);
  const raised = Object.entries(answer.failed);
  const unseen = raised.length ? 0 : every(answer.batches).filter((one) => !one.samples).length;
  const notes = [
    answer.samples === undefined ? "The samples themselves are shown to keys that may give commands." : "",
    unseen ? `${unseen === 1 ? "1 batch" : `${formatCount(unseen)} batches`} could not be looked at in time.` : "",
    ...raised.map(([rank, why]) => `Rank ${rank}: the job's own function raised ${asText(why)}.`),
    answer.left_out ? `${plural(answer.left_out, "sample")} less bad were left out.` : "",
  ].filter(Boolean);
  return [
    left ? h("div.nothing.bad.batch-left", left) : null,
    strip(answer, incident),
    samples.length ? h("div.wide-table", sampleTable(answer, incident, all)) : null,
    notes.map((note) => h("div.nothing", note)),
    samples.length > SAMPLES
      ? h(
          "div.group-foot",
          h(
            "button.toggle",
            { "aria-pressed": String(all), onclick: toggle },
            all ? "The first ones" : `All ${formatCount(samples.length)} samples`,
          ),
        )
      : null,
  ];
}

/** Who was asked when, for the head of the panel. */
export const answerNote = (answer, order) =>
  `${plural(every(answer.ranks).length, "rank")}, ${clock(answer.time)}${
    order && order.issuer === "stabilityboard" ? ", asked when it was found" : ""
  }`;
