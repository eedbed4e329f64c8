// The right rail: incidents, lineage, checkpoints.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  /** Cards in the list before "All" is pressed, and at most ever. */
  const FEW = 6;
  const MOST = 200;

  /** Kinds about processes and machines: going back to a checkpoint does not cure them. */
  const PROCESSES = new Set(["hang", "process_death", "agent_lost"]);

  const facts = (...words) => S.h("div", { class: "facts" }, words.filter(Boolean).map((word) => (typeof word === "string" ? S.h("span", { class: "fact-chip" }, word) : word)));

  function stateWords(incident) {
    if (incident.state === "open") return incident.recovery === "pending" ? "open, may recover" : "open";
    if (incident.state === "recovered") return incident.recovery ? `recovered (${incident.recovery})` : "recovered";
    return "resolved";
  }

  function incidentCard(page, incident) {
    const severity = S.severity(incident);
    const delay = incident.step !== null && incident.onset_step !== null ? incident.step - incident.onset_step : null;
    const suggestion = incident.suggestion;
    const open = incident.state === "open";
    const said = incident.kind === "alert";
    const curve = !said && !PROCESSES.has(incident.kind);
    const where = [
      incident.onset_step === null || incident.onset_step === undefined ? null : `${curve ? "onset" : "step"} ${S.count(incident.onset_step)}`,
      !curve || delay === null || !Number.isFinite(delay) ? null : `seen ${delay === 0 ? "at once" : `${S.plural(delay, "step")} later`}`,
      incident.rank === null || incident.rank === undefined ? null : `rank ${incident.rank}`,
      incident.node && (incident.rank === null || incident.rank === undefined) ? incident.node : null,
      incident.dataset ? S.h("span", { class: "fact-chip dataset", title: "The data set whose loss carries it" }, S.h("span", {}, "data set"), ` ${incident.dataset}`) : null,
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
            if (!event.target.closest("button")) page.zoomTo(incident);
          },
          keydown: (event) => {
            if (event.key === "Enter" && event.target === event.currentTarget) page.zoomTo(incident);
          },
        },
      },
      S.h("div", { class: "incident-head" }, S.h("h3", {}, incident.title || S.words(incident.kind)), S.h("time", {}, S.age(page.now() - incident.opened))),
      incident.text ? S.h("p", {}, incident.text) : null,
      facts(...where),
      suggestion && suggestion.text && open ? S.h("p", { class: "suggestion" }, suggestion.text) : null,
      S.h(
        "div",
        { class: "incident-foot" },
        S.h("span", { class: `state ${open ? severity : "calm"}` }, stateWords(incident)),
        S.h("span", { class: "grow" }),
        incident.acknowledged_by
          ? S.h("span", { class: "sub" }, `seen by ${incident.acknowledged_by}`)
          : open
            ? S.h("button", { type: "button", class: "button quiet", title: said ? "What the job said is then closed" : "Says that you look after it; it stays open", on: { click: () => page.acknowledge(incident) } }, said ? "Acknowledge and close" : "Acknowledge")
            : null,
        open && !incident.dead && !PROCESSES.has(incident.kind)
          ? S.h(
              "button",
              { type: "button", class: `button${suggestion && suggestion.action === "roll_back" ? " danger" : ""}`, data: { rollback: incident.incident_id }, on: { click: () => page.openRollback(incident) } },
              "Roll back …",
            )
          : null,
      ),
    );
  }

  let keyOf = new WeakMap();

  /** Bring the list of incidents up to date. Cards are rebuilt only when something in them changed. */
  S.drawIncidents = function (page, all) {
    const place = S.byId("incidents");
    if (!place) return;
    const list = page.incidents();
    const open = list.filter((incident) => incident.state === "open").length;
    const badge = S.byId("incidents-count");
    S.text(badge, open ? `${open} open` : list.length ? `${list.length}` : "");
    const worst = list.some((one) => one.state === "open" && S.severity(one) === "critical") ? "critical" : "warning";
    S.cls(badge, `chip${open ? ` ${worst}` : ""}`);
    const toggle = S.byId("incidents-all");
    S.show(toggle, list.length > FEW);
    S.text(toggle, all ? "Fewer" : `All ${list.length}`);
    const shown = list.slice(0, all ? MOST : FEW);
    const key = JSON.stringify([page.ready, shown.map((one) => [one.incident_id, one.version, one.state, one.acknowledged_by, one.dead, one.updated, S.age(page.now() - one.opened)])]);
    if (keyOf.get(place) === key) return;
    keyOf.set(place, key);
    if (!list.length) {
      S.fill(place, S.h("div", { class: "nothing" }, page.ready ? "Nothing has gone wrong so far." : ""));
      return;
    }
    const focused = document.activeElement && place.contains(document.activeElement) ? document.activeElement.dataset.incident : null;
    S.fill(place, shown.map((incident) => incidentCard(page, incident)));
    if (focused) [...place.children].find((card) => card.dataset.incident === focused)?.focus();
  };

  /** A segment that somebody said is none: it stays in the list, since somebody may ask later. */
  function takenBack(segment, level) {
    return S.h(
      "div",
      { class: "segment lost", data: { segment: segment.id }, style: { "--level": Math.min(6, level) } },
      S.h("div", { class: "segment-head" }, S.h("span", {}, "Taken back: not a rollback"), S.h("span", { class: "num" }, "")),
      S.h("div", { class: "sub" }, `steps from ${S.count(segment.fork_step + 1)} came twice; the line goes on as it was`),
    );
  }

  const CAUSES = { start: "Start", command: "Rollback", declared: "Rollback by the job", restart: "Restart" };

  /** Bring the tree of segments up to date: what each kept, what was cut off it, and why. */
  S.drawLineage = function (page) {
    const place = S.byId("lineage");
    if (!place) return;
    const { segments, forks } = page.view();
    const list = [...segments.values()].sort((a, b) => a.id - b.id);
    const key = JSON.stringify(list.map((one) => [one, page.lastStep() && one.id === page.head() ? page.lastStep() : 0]));
    if (keyOf.get(place) === key) return;
    keyOf.set(place, key);
    S.text(S.byId("lineage-note"), list.length ? S.plural(list.filter((one) => !one.undone).length, "segment") : "");
    if (!list.length) {
      S.fill(place, S.h("div", { class: "nothing" }, page.ready ? "The tree begins with the first point." : ""));
      return;
    }
    const depth = new Map();
    const rows = [];
    for (const segment of list) {
      if (segment.undone) {
        rows.push(takenBack(segment, 1 + (depth.get(segment.parent) || 0)));
        continue;
      }
      const isHead = segment.id === page.head();
      // The news of a fork comes before its first point; from then on the points themselves say how far it is.
      const begun = isHead && page.lastStep() !== null && page.lastStep() > (segment.fork_step ?? -Infinity);
      const first = segment.first_step ?? (begun && segment.fork_step !== null ? segment.fork_step + 1 : null);
      const last = isHead && page.lastStep() !== null ? Math.max(page.lastStep(), segment.last_step ?? -1) : segment.last_step;
      const dead = segment.on_head_path === false ? -1 : segment.dead_after;
      const keptTo = dead === null || dead === undefined ? last : Math.min(dead, last);
      const kept = first === null || keptTo < first ? 0 : keptTo - first + 1;
      const gone = first === null || last === null ? 0 : last - first + 1 - kept;
      const fork = forks.find((one) => one.segment.id === segment.id);
      const level = segment.parent === null || segment.parent === undefined ? 0 : Math.min(6, (depth.get(segment.parent) || 0) + 1);
      depth.set(segment.id, level);
      const name = fork ? `${fork.label} · ${CAUSES[segment.cause] || segment.cause}` : CAUSES[segment.cause] || `Segment ${segment.id}`;
      rows.push(
        S.h(
          "div",
          { class: `segment${isHead ? " head" : ""}${kept ? "" : " lost"}`, data: { segment: segment.id }, style: { "--level": level } },
          S.h("div", { class: "segment-head" }, S.h("b", {}, name), S.h("span", { class: "num" }, first === null ? "–" : kept ? `+${S.count(kept)}` : "0")),
          S.h(
            "div",
            { class: "sub" },
            first === null ? `from step ${S.count((segment.fork_step ?? -1) + 1)}, no point yet` : kept ? `${S.count(first)} → ${S.count(keptTo)}${isHead && page.run && page.run.status === "running" ? " live" : ""}` : "nothing kept",
          ),
          segment.reason || segment.issuer || Object.keys(segment.changes || {}).length
            ? S.h("div", { class: "why" }, [segment.reason, S.changes(segment.changes), segment.issuer ? `by ${segment.issuer}` : ""].filter(Boolean).join(" · "))
            : null,
          // The server refuses while another segment hangs from it.
          segment.cause === "restart" && !list.some((one) => one.parent === segment.id)
            ? S.h("button", { type: "button", class: "link", data: { undo: segment.id }, on: { click: () => page.undo(segment, fork ? fork.label : "") } }, "Not a rollback …")
            : null,
        ),
      );
      if (gone > 0) {
        rows.push(
          S.h(
            "div",
            { class: "segment discarded", style: { "--level": level } },
            S.h("div", { class: "segment-head" }, S.h("span", {}, "discarded"), S.h("span", { class: "num" }, `−${S.count(gone)}`)),
            S.h("div", { class: "sub" }, `${S.count(Math.max(first, (dead ?? last) + 1))} → ${S.count(last)}`),
          ),
        );
      }
    }
    S.fill(place, rows);
  };

  /** Bring the list of checkpoints up to date. */
  S.drawCheckpoints = function (page) {
    const place = S.byId("checkpoints");
    if (!place) return;
    const list = page.checkpointList();
    const shown = list.slice(0, 40);
    const key = JSON.stringify(shown.map((one) => [one, S.age(page.now() - one.time)]));
    if (keyOf.get(place) === key) return;
    keyOf.set(place, key);
    const usable = list.filter((one) => one.available && !one.dead).length;
    S.text(S.byId("checkpoints-note"), list.length ? `${usable} of ${list.length} usable` : "");
    if (!shown.length) {
      S.fill(place, S.h("div", { class: "nothing" }, page.ready ? "None yet. The job announces each with run.checkpoint(step, path)." : ""));
      return;
    }
    S.fill(
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
