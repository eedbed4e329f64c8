// What people can do on an incident's page: acknowledge it, look at every rank, restart the job, roll it back; and what became
// of the newest order.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  /** What became of an order is told this long after its last word, seconds. */
  const SHOWN_S = 300;
  /** Nobody is there any more who could obey. */
  const ENDED = new Set(["finished", "offline"]);

  class IncidentActions {
    constructor(page) {
      this.page = page;
      const button = (id, look, words, run) =>
        S.h("button", { type: "button", id, class: `button ${look}`, on: { click: run } }, words);
      // Made once: whoever stands on one with the keyboard stays there.
      this.ack = button("incident-ack", "primary", "Acknowledge", () => this.acknowledge());
      this.dump = button("incident-dump", "", "Dump stacks now", () => this.dumpStacks());
      this.restart = button("incident-restart", "danger", "Restart the job …", () => page.restart.show());
      this.back = button("incident-rollback", "", [S.h("span", { class: "icon icon-back" }), "Roll back …"], () =>
        page.dialog.show(page.incident),
      );
      this.words = S.h("span", { class: "sub action-words", role: "status" });
      S.fill(S.byId("incident-actions"), this.ack, this.dump, this.restart, this.back, this.words);
    }

    draw() {
      const { incident, run } = this.page;
      const open = incident.state === "open" && !incident.dead;
      const { of_machine: process, about } = S.kind(incident.kind);
      const said = about === "user";
      const over = Boolean(run) && ENDED.has(run.status);
      const unheard = Boolean(run) && run.agents === 0;
      const why = over
        ? "This run has ended: there is no job any more."
        : unheard
          ? "No agent of this run is connected, so an order would not reach the job."
          : "";
      S.show(this.ack, incident.state === "open" && !incident.acknowledged_by);
      S.text(this.ack, said ? "Acknowledge and close" : "Acknowledge");
      this.ack.title = said ? "The job's alert is then closed" : "Tells others that you look after it; it stays open";
      S.show(this.dump, process && !over);
      this.dump.disabled = Boolean(why) || Boolean(this.asking);
      this.dump.title = why || "Every agent samples its ranks and asks them for their stacks; takes about 3 s";
      S.show(this.restart, process && open && !over);
      this.restart.disabled = Boolean(why);
      this.restart.title = why || "Shows what would be ended and from where it goes on, then asks";
      const suggestion = S.record(incident.suggestion);
      S.show(this.back, open && !over && (!process || suggestion.action === "roll_back"));
      S.cls(this.back, `button${suggestion.action === "roll_back" ? " danger" : ""}`);
      this.back.disabled = Boolean(why);
      S.text(this.words, this.told(why));
      S.show(
        S.byId("incident-actions"),
        [this.ack, this.dump, this.restart, this.back].some((one) => !one.hidden) || this.words.textContent !== "",
      );
    }

    /** The newest order in a sentence, or why none can be given. */
    told(why) {
      const { page } = this;
      const verdict = S.verdictOf(page.incident);
      // The stacks that the server asked for by itself stand below; that is no news.
      const [command] = [...page.commands.values()]
        .filter((one) => !(verdict && one.command_id === verdict.dump))
        .sort((a, b) => b.issued - a.issued);
      const last = command && S.list(command.history)[S.list(command.history).length - 1];
      if (
        command &&
        command.issued >= S.sinceOf(page.incident) - 60 &&
        page.now() - ((last && last.time) || command.issued) < SHOWN_S
      )
        return S.commandLine(command);
      return page.incident.state === "open" ? why : "";
    }

    async acknowledge() {
      try {
        this.page.setIncident(await S.api.acknowledge(this.page.id, this.page.incidentId));
        this.page.draw();
      } catch (error) {
        S.toast(S.errorText(error), "warning");
      }
    }

    async dumpStacks() {
      if (this.asking) return;
      this.asking = true;
      this.draw();
      try {
        this.page.watchDump(
          await S.api.order(this.page.id, {
            kind: "dump_stacks",
            reason: `asked for on the page of “${S.str(this.page.incident.title).slice(0, 200)}”`,
          }),
        );
      } catch (error) {
        S.toast(S.errorText(error), "warning");
      } finally {
        this.asking = false;
        this.page.draw();
      }
    }
  }

  S.IncidentActions = IncidentActions;
})();
