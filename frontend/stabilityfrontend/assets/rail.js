// The right rail: incidents and checkpoints; lineage.js draws the tree between them.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  /** Cards in the list before "All" is pressed, and at most ever. */
  const FEW = 6;
  const MOST = 200;

  /** Open ones first and the gravest of them on top, else the newest. */
  S.gravestFirst = (a, b) => {
    const open = (one) => (one.state === "open" ? S.SEVERITIES.indexOf(S.severity(one)) : 3);
    return open(a) - open(b) || b.opened - a.opened;
  };

  const facts = (...words) =>
    S.h(
      "div",
      { class: "facts" },
      words
        .filter(Boolean)
        .map((word) => (typeof word === "string" ? S.h("span", { class: "fact-chip" }, word) : word)),
    );

  function stateWords(incident) {
    if (incident.state === "open") return incident.recovery === "pending" ? "open, may recover" : "open";
    if (incident.state === "recovered") return incident.recovery ? `recovered (${incident.recovery})` : "recovered";
    return "resolved";
  }

  function incidentCard(page, incident, first) {
    const severity = S.severity(incident);
    const delay = incident.step !== null && incident.onset_step !== null ? incident.step - incident.onset_step : null;
    const suggestion = incident.suggestion;
    const open = incident.state === "open";
    const kind = S.kind(incident.kind);
    const said = kind.about === "user";
    const curve = !said && !kind.stops_job; // what stops a job has its onset in no curve
    const verdict = S.verdictOf(incident);
    const where = [
      S.toldStep(incident.onset_step) === null ? null : `${curve ? "onset" : "step"} ${S.count(incident.onset_step)}`,
      !curve || delay === null || !Number.isFinite(delay)
        ? null
        : `detected ${delay === 0 ? "at once" : `${S.plural(delay, "step")} later`}`,
      incident.rank === null || incident.rank === undefined ? null : `rank ${incident.rank}`,
      incident.node && (incident.rank === null || incident.rank === undefined) ? incident.node : null,
      incident.dataset
        ? S.h(
            "span",
            { class: "fact-chip dataset", title: "The data set whose loss carries it" },
            S.h("span", {}, "data set"),
            ` ${incident.dataset}`,
          )
        : null,
      incident.dataset ? null : S.dataSets(incident),
      verdict && verdict.confidence ? `${verdict.confidence} confidence` : null,
      incident.dead ? "on a discarded branch" : null,
    ];
    return S.h(
      "article",
      {
        class: `incident ${severity}${open ? "" : " closed"}`,
        tabindex: "0",
        data: { incident: incident.incident_id },
        on: {
          click: (event) => {
            if (!event.target.closest("button, a")) page.zoomTo(incident);
          },
          keydown: (event) => {
            if (event.key === "Enter" && event.target === event.currentTarget) page.zoomTo(incident);
          },
        },
      },
      S.h(
        "div",
        { class: "incident-head" },
        S.h("h3", {}, incident.title || kind.label),
        S.h("time", {}, S.age(page.now() - incident.opened)),
      ),
      verdict && verdict.text
        ? S.h("p", { class: "verdict-line" }, ...S.lastingWords(verdict.text, incident, page.now()))
        : incident.text
          ? S.h("p", {}, incident.text)
          : null,
      facts(...where),
      S.evidence(page, incident, first),
      S.h(
        "div",
        { class: "incident-foot" },
        S.h("span", { class: `state ${open ? severity : "calm"}` }, stateWords(incident)),
        S.h("span", { class: "grow" }),
        page.id
          ? S.h(
              "a",
              {
                class: "details-link",
                href: S.incidentHref(page.id, incident.incident_id),
                data: { details: incident.incident_id },
              },
              "Details",
            )
          : null,
        S.lessButton(page, incident),
        incident.acknowledged_by
          ? S.h("span", { class: "sub" }, `acknowledged by ${incident.acknowledged_by}`)
          : open
            ? S.h(
                "button",
                {
                  type: "button",
                  class: "button quiet",
                  title: said ? "The job's alert is then closed" : "Tells others that you look after it; it stays open",
                  data: { needs: "command" },
                  on: { click: () => page.acknowledge(incident) },
                },
                said ? "Acknowledge and close" : "Acknowledge",
              )
            : null,
        open && !incident.dead && !kind.of_machine
          ? S.h(
              "button",
              {
                type: "button",
                class: `button${suggestion && suggestion.action === "roll_back" ? " danger" : ""}`,
                data: { rollback: incident.incident_id },
                on: { click: () => page.openRollback(incident) },
              },
              "Roll back …",
            )
          : null,
      ),
    );
  }

  let keyOf = new WeakMap();

  /** Bring the list of incidents up to date. Cards are looked at only when something in them changed. */
  S.drawIncidents = function (page, all) {
    const place = S.byId("incidents");
    if (!place) return;
    const every = page.incidents().sort(S.gravestFirst);
    const list = every.filter((incident) => !S.onlyKnown(incident));
    const known = every.filter(S.onlyKnown).slice(0, MOST);
    const open = list.filter((incident) => incident.state === "open").length;
    const badge = S.byId("incidents-count");
    S.text(badge, open ? `${open} open` : list.length ? `${list.length}` : "");
    const worst = list.some((one) => one.state === "open" && S.severity(one) === "critical") ? "critical" : "warning";
    S.cls(badge, `chip${open ? ` ${worst}` : ""}`);
    const toggle = S.byId("incidents-all");
    S.show(toggle, list.length > FEW);
    S.text(toggle, all ? "Fewer" : `All ${list.length}`);
    const shown = list.slice(0, all ? MOST : FEW);
    const key = JSON.stringify([
      page.ready,
      page.detectors.list.length,
      page.knownShown,
      known.length,
      page.evidenceFolds && [...page.evidenceFolds],
      [...shown, ...(page.knownShown ? known : [])].map((one) => [
        one.incident_id,
        one.version,
        one.state,
        one.acknowledged_by,
        one.dead,
        one.updated,
        S.age(page.now() - one.opened),
      ]),
    ]);
    if (keyOf.get(place) === key) {
      S.tickLasting(place, page.now());
      return;
    }
    keyOf.set(place, key);
    // The gravest alarm that is open shows all that is known of it: that is what people came for.
    const first = shown.find((incident) => incident.state === "open");
    const nothing = list.length
      ? null
      : S.h("div", { class: "nothing" }, page.ready ? "Nothing has gone wrong so far." : "");
    S.patch(
      place,
      nothing,
      shown.map((incident) => incidentCard(page, incident, incident === first)),
      S.knownList(page, known),
    );
  };

  /** Bring the list of checkpoints up to date. */
  S.drawCheckpoints = function (page) {
    const place = S.byId("checkpoints");
    if (!place) return;
    const list = page.checkpointList();
    const shown = list.slice(0, 40);
    const key = JSON.stringify([page.ready, shown.map((one) => [one, S.age(page.now() - one.time)])]);
    if (keyOf.get(place) === key) return;
    keyOf.set(place, key);
    const usable = list.filter((one) => one.available && !one.dead).length;
    S.text(S.byId("checkpoints-note"), list.length ? `${usable} of ${list.length} usable` : "");
    if (!shown.length) {
      S.patch(
        place,
        S.h(
          "div",
          { class: "nothing" },
          page.ready ? "None yet. The job announces each with run.checkpoint(step, path)." : "",
        ),
      );
      return;
    }
    S.patch(
      place,
      shown.map((one) =>
        S.h(
          "div",
          { class: `checkpoint${one.available && !one.dead ? "" : " off"}`, title: one.path },
          S.h("i", { class: "tick" }),
          S.h("b", {}, S.count(one.step)),
          S.h("span", { class: "sub" }, one.dead ? "on a discarded branch" : one.available ? "" : "no longer on disk"),
          S.h("span", { class: "grow" }),
          S.h("span", { class: "sub" }, S.ago(page.now() - one.time)),
        ),
      ),
    );
  };

  S.forgetRail = () => {
    keyOf = new WeakMap();
  };
})();
