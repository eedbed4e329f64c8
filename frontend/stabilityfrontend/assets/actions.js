// What people do on a run's page beside looking: roll back, acknowledge, take a restart back, go to an incident.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});

  /** Methods of the run's page (run.js). */
  S.actions = {
    openRollback(incident) {
      this.dialog.show(incident);
    },

    async acknowledge(incident) {
      try {
        this.setIncident(await S.api.acknowledge(this.id, incident.incident_id));
      } catch (error) {
        S.toast(S.errorText(error), "warning");
      }
    },

    /** Take back a segment that was only inferred. The server says `reset` then, and everything is fetched anew. */
    async undo(segment, label) {
      const sure = await S.confirm({
        title: `${label ? `${label} was` : "This was"} not a rollback`,
        text: `Nobody declared it: the steps went back to ${S.count(segment.fork_step + 1)} and went on, so a restart was assumed. Taken back, the line goes on as it was before, and what came twice is left out of it. It can't be put back.`,
        action: "Take it back",
      });
      if (!sure || this.gone) return;
      try {
        await S.api.undo(this.id, segment.id);
        S.toast(`${label || "The restart"} is taken back.`, "good");
        if (this.state !== "live") this.feed.sync();
      } catch (error) {
        S.toast(S.errorText(error), "warning");
      }
    },

    zoomTo(incident) {
      if (incident.onset_step === null || incident.onset_step === undefined) return;
      const end = S.bandEnd(incident, this.store.segments, this.lastStep());
      const air = Math.max(20, 0.6 * (end - incident.onset_step));
      this.zoom.set([Math.max(0, incident.onset_step - air), end + air]);
      S.byId("focus-panel").scrollIntoView({ block: "nearest", behavior: "smooth" });
    },
  };
})();
