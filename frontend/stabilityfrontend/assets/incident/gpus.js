// The GPUs that an incident names: what was seen of each, and what else is on record.

import { asFinite, asList, asRecord, asText } from "../core/as_type.js";
import { h } from "../core/dom.js";
import { clock, formatCount, moment, plural, readable } from "../core/format.js";
import { gpuTable } from "../core/kinds.js";
import { incidentHref } from "../core/route.js";
import { whenTitle } from "../core/when.js";
import { rankWords } from "../ranks/rank_words.js";
import { factList } from "./facts.js";
import { verdictOf } from "./verdict.js";

const gpuLine = (gpu, node) =>
  [
    asFinite(gpu.index) === null ? "" : `GPU ${gpu.index}`,
    asText(gpu.node) || asText(node),
    asText(gpu.name),
    rankWords(gpu.ranks),
  ]
    .filter(Boolean)
    .join(" · ");

/** What was seen of the GPUs, sign by sign, the first one first; of several it is said which one each is of. */
function signTable(signs, gpus) {
  const whose = (sign) => gpus.length > 1 && gpus.find((gpu) => asText(gpu.uuid) && gpu.uuid === sign.gpu);
  return h(
    "table.table.dense.signs",
    h(
      "thead",
      h(
        "tr",
        ["Seen", "Sign", "Times"].map((word) => h("th", { scope: "col", class: word === "Times" ? "num" : "" }, word)),
      ),
    ),
    h(
      "tbody",
      signs.map((sign) =>
        h(
          "tr",
          h("td", { title: whenTitle(asFinite(sign.first)) }, asFinite(sign.first) === null ? "–" : clock(sign.first)),
          h(
            "td.words",
            whose(sign) && asFinite(whose(sign).index) !== null ? h("b", `GPU ${whose(sign).index} `) : null,
            asFinite(sign.xid) === null || /^Xid /.test(asText(sign.text)) ? null : h("b", `Xid ${sign.xid} `),
            asText(sign.text) || readable(asText(sign.what)),
            asText(sign.said) && asText(sign.said) !== asText(sign.text) && !/^Xid \d+$/.test(asText(sign.said))
              ? h("div.sub", `“${asText(sign.said)}”`)
              : null,
          ),
          h("td.num", sign.on === true ? "lasts" : formatCount(asFinite(sign.count) || 1)),
        ),
      ),
    ),
  );
}

/** What is remembered of a GPU, this incident's own faults left out. `known`: of `GET /gpus`. */
function historyOf(known, incident) {
  const faults = known.faults.filter((fault) => fault.incident_id !== incident.incident_id);
  const count = known.count - (known.faults.length - faults.length); // what is reported here does not repeat itself
  if (count <= 0) return null;
  const last = faults.length ? faults[0].time : known.last;
  return h(
    "div",
    h("b.bad", `${plural(count, "fault")} on record, ${plural(known.runs, "run")} in all, last ${moment(last)}`),
    faults
      .slice(0, 4)
      .map((fault) =>
        h(
          "div.sub",
          h("a", { href: incidentHref(fault.run_id, fault.incident_id) }, fault.title),
          ` · ${fault.run_name || fault.run_id}`,
        ),
      ),
  );
}

/** The GPUs that an incident is about: of a fault all that it struck, else the one that the verdict names. */
export function gpusOf(incident) {
  const evidence = asRecord(incident.evidence);
  const struck = asList(evidence.gpus).map(asRecord);
  const verdict = verdictOf(incident);
  if (struck.length) return struck;
  if (asText(asRecord(evidence.gpu).uuid) || incident.kind === "gpu_fault") return [asRecord(evidence.gpu)];
  return verdict ? verdict.gpus.filter((gpu) => gpu.uuid) : [];
}

/** What a GPU said, and whether it did so before. `known`: its entry of `GET /gpus`, null: none, undefined: not asked. */
export function gpuParts(incident, known) {
  const evidence = asRecord(incident.evidence);
  const gpus = gpusOf(incident);
  const fault = incident.kind === "gpu_fault";
  const history = known ? historyOf(known, incident) : null;
  if (!gpus.length || (!fault && !history)) return null;
  const [gpu] = gpus;
  const signs = asList(evidence.signs).map(asRecord);
  const action = (value) =>
    value === "RESTART_BM" ? "restart the machine (bare metal)" : readable(asText(value).toLowerCase());
  return [
    factList([
      [
        gpus.length > 1 ? "GPUs" : "GPU",
        gpus.length > 1
          ? gpus.slice(0, 16).map((one) => h("div", gpuLine(one, incident.node)))
          : gpuLine(gpu, incident.node),
      ],
      ["UUID", gpus.length === 1 && asText(gpu.uuid) ? h("code", asText(gpu.uuid)) : ""],
      ["Bus", gpus.length === 1 && asText(gpu.bus_id) ? h("code", asText(gpu.bus_id)) : ""],
      [
        "Class",
        asText(evidence.class)
          ? h(
              "span",
              h("b", asText(evidence.class)),
              gpuTable.classes[evidence.class] ? `: ${gpuTable.classes[evidence.class]}` : "",
            )
          : "",
      ],
      ["The driver asks", asText(evidence.driver_asks), "NVML's own recovery action for this GPU"],
      [
        "NVIDIA's catalog",
        action(evidence.nvidia_action),
        "What NVIDIA's catalog of Xids tells to do about the first one",
      ],
      ["Before", history || (fault && known !== undefined ? "nothing else is on record of this GPU" : "")],
    ]),
    signs.length ? signTable(signs, gpus) : null,
    asText(evidence.source) && fault ? h("p.source.sub", `Source: ${asText(evidence.source)}.`) : null,
  ];
}
