// How processes ended: exit codes, signals, exceptions, and the evidence of a kill for memory.

import { asFinite, asList, asRecord, asText, asWholeText, toldStep } from "../core/as_type.js";
import { h } from "../core/dom.js";
import { formatCount, moment, readable, sentence } from "../core/format.js";
import { factList, HOWS, LISTED } from "./facts.js";
import { verdictOf } from "./verdict.js";

/** Deaths of one incident that are described. */
const DEATHS = 8;

function nested(record) {
  return Object.entries(asRecord(record))
    .slice(0, LISTED)
    .map(([name, value]) => `${readable(name)} ${asText(value) || JSON.stringify(value)}`)
    .join(" · ");
}

/** An exception in its own lines: those of a DataLoader quote a traceback. */
function exceptionPart(exception) {
  const text = [asText(exception.type), asWholeText(exception.message || exception.text).trim()]
    .filter(Boolean)
    .join(": ");
  return text.includes("\n") ? h("span.lines", text) : text;
}

/** An exception's traceback as Python prints it, "" where it has none. */
function traceback(exception) {
  const frames = asWholeText(exception.traceback).trimEnd();
  const said = [asText(exception.type), asWholeText(exception.message)].filter(Boolean).join(": ");
  return frames && ["Traceback (most recent call last):", frames, said].filter(Boolean).join("\n");
}

/** One death: `{node, rank, ...}` as the agent told it, or the whole evidence of an older server. */
function deathPart(found, several, told, explained) {
  const death = { ...asRecord(found.evidence), ...found };
  const exception = asRecord(death.exception);
  const signal = [asText(death.signal_name), asText(death.signal) ? `(${asText(death.signal)})` : ""]
    .filter(Boolean)
    .join(" ");
  const facts = factList([
    [
      "Process",
      [
        asText(death.rank) && several ? `rank ${asText(death.rank)}` : "",
        asText(death.pid) ? `pid ${asText(death.pid)}` : "",
        asText(death.node),
      ]
        .filter(Boolean)
        .join(" · "),
    ],
    [
      "When",
      asFinite(death.time) === null
        ? ""
        : `${moment(death.time)}${toldStep(death.step) === null ? "" : `, step ${formatCount(death.step)}`}`,
    ],
    ["Signal", signal],
    ["Exit code", asText(death.exit_code)],
    [
      "Out of memory",
      asText(asRecord(death.oom).line)
        ? h(
            "span",
            asText(death.oom.line),
            asText(death.oom.source) ? h("span.sub", ` (${asText(death.oom.source)})`) : null,
          )
        : nested(death.oom),
    ],
    ["Exception", exceptionPart(exception)],
    ["Meaning", asText(explained.name) && `${asText(explained.name)}: ${asText(explained.means)}`],
    ["Usual cause", asText(explained.cause) && sentence(asText(explained.cause))],
    ["Last phase", asText(death.last_phase)],
    ["What was seen", told.includes(asText(death.text)) ? "" : asText(death.text)],
    ["Known by", HOWS[death.how] || readable(asText(death.how))],
  ]);
  const fatal = asWholeText(death.fatal) || traceback(exception);
  return [
    facts,
    fatal
      ? h(
          "details.fatal",
          { open: fatal.length < 4000 },
          h("summary", "Output of the crash"),
          h("pre.stack-text", { tabindex: "0", "aria-label": "Trace of the fatal error" }, culpritFirst(fatal)),
        )
      : null,
  ];
}

/** The thread that ended the process before the others: faulthandler writes it last. */
function culpritFirst(text) {
  const parts = text.split(/\n{2,}/);
  const at = parts.findIndex((part) => /^Current thread /.test(part));
  if (at > 1) parts.splice(1, 0, ...parts.splice(at, 1));
  return parts.join("\n\n");
}

/** How processes ended; null for incidents that are not of a death. */
export function deathParts(incident) {
  if (incident.kind !== "process_death") return null;
  const evidence = asRecord(incident.evidence);
  const deaths = asList(evidence.deaths).map(asRecord);
  const shown = deaths.length ? deaths.slice(0, DEATHS) : [{ ...evidence, ...asRecord(evidence.death) }];
  const verdict = verdictOf(incident);
  const more = deaths.length - shown.length + (asFinite(evidence.not_described) || 0);
  return [
    shown.map((death, at) =>
      h(
        "div.death",
        deathPart(
          death,
          deaths.length > 1,
          verdict ? verdict.because : [],
          at === 0 ? asRecord(evidence.explained) : {}, // of the death that the others follow from
        ),
      ),
    ),
    more > 0 ? h("div.sub", `and ${formatCount(more)} deaths more`) : null,
  ];
}
