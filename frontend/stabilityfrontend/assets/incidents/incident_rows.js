// The rows of the list of all incidents: what it is, of which run, since when, who looks after it.

import { appearanceOf, tonedClass } from "../core/appearance.js";
import { h } from "../core/dom.js";
import { ago, duration, formatCount, moment } from "../core/format.js";
import { incidentHref } from "../core/route.js";
import { whenTitle } from "../core/when.js";

const ADVICE = { roll_back: "roll back", restart: "restart", wait: "wait", inspect: "look into it" };

/** Where an incident is in words. */
const place = (one) =>
  [
    one.project || "no project",
    one.onset_step >= 0 ? `step ${formatCount(one.onset_step)}` : null,
    one.dataset,
    one.node,
    one.rank === null ? null : `rank ${one.rank}`,
    one.dead ? "on a discarded branch" : null,
  ].filter(Boolean);

/**
 * A group's row, and its others where it is unfolded. `page`: unfolded, chosen, busy, live, and what is done: `draw`, `choose`,
 * `acknowledge`.
 */
export function rowsOf(page, { key, first, more }) {
  const unfolded = page.unfolded.has(key);
  const fold = more.length
    ? h(
        "button.link.fold-more",
        {
          "aria-expanded": String(unfolded),
          data: { fold: key },
          onclick: () => {
            if (unfolded) page.unfolded.delete(key);
            else page.unfolded.add(key);
            page.draw();
          },
        },
        unfolded ? "fold" : `and ${formatCount(more.length)} more`,
      )
    : null;
  const ids = unfolded ? [first] : [first, ...more];
  return [row(page, first, fold, ids), ...(unfolded ? more.map((one) => row(page, one, null, [one], true)) : [])];
}

/** One row; what is done with it is done with all of `same`. */
function row(page, one, fold, same, within = false) {
  const open = one.state === "open";
  const waiting = same.filter((other) => other.state === "open" && !other.acknowledged_by && other.alarm);
  const look = appearanceOf(one);
  const { tone } = look;
  const box = h("input", {
    type: "checkbox",
    "aria-label": `Choose ${one.title || one.label} of ${one.run_name}`,
    data: { needs: "command" },
    onchange: (event) =>
      page.choose(
        waiting.map((other) => other.incident_id),
        event.target.checked,
      ),
  });
  box.checked = waiting.length > 0 && waiting.every((other) => page.chosen.has(other.incident_id));
  box.disabled = waiting.length === 0;
  const busy = same.some((other) => page.busy.has(other.incident_id));
  const by = same.find((other) => other.acknowledged_by);
  const href = incidentHref(one.run_id, one.incident_id);
  const now = page.live.now();
  return h(
    "li",
    { data: { rowOf: one.incident_id, tone }, class: `incident-row ${tone}${within ? " within" : ""}` },
    box,
    h(
      "div.row-what",
      h("a.row-title", { href, data: { row: one.incident_id } }, one.title || one.label),
      h(
        "div.sub",
        h("span", { class: tonedClass("appearance", look) }, open ? one.severity : look.word),
        ` · ${one.label}`,
        fold ? " · " : null,
        fold,
      ),
    ),
    h(
      "div.row-run",
      h("a", { href: `/runs/${encodeURIComponent(one.run_id)}` }, one.run_name),
      h("div.sub", place(one).join(" · ")),
    ),
    h(
      "div.row-when",
      { title: whenTitle(one.since) },
      h("div", ago(now - one.since)),
      h("div.sub", open || one.resolved === null ? moment(one.since) : `lasted ${duration(one.resolved - one.since)}`),
    ),
    h(
      "div.row-do",
      waiting.length
        ? h(
            "button.button",
            {
              disabled: busy,
              title: "Tells others that you look after it; it stays open",
              data: { acknowledge: one.incident_id, needs: "command" },
              onclick: () => page.acknowledge(waiting),
            },
            busy ? "…" : waiting.length > 1 ? `Acknowledge ${formatCount(waiting.length)}` : "Acknowledge",
          )
        : by
          ? h("span.sub", { title: whenTitle(by.acknowledged) }, `${by.acknowledged_by}, ${ago(now - by.acknowledged)}`)
          : null,
      open && ADVICE[one.advice] ? h("span.sub", `advice: ${ADVICE[one.advice]}`) : null,
    ),
  );
}
