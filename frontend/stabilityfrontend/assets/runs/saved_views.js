// Named views of the table of runs, kept by the server for everybody of a project.

import { api } from "../core/api.js";
import { fill, h, toast } from "../core/dom.js";
import { errorText } from "../core/format.js";
import { keptState } from "./table_state.js";
import { Popover } from "./table_tools.js";

export class SavedViews {
  constructor(place, page) {
    this.page = page;
    this.views = [];
    this.popover = new Popover(place, "runs-views", "Views", (panel) => this.open(panel));
  }

  close() {
    this.popover.close();
  }

  open(panel) {
    this.list = h("div.view-list");
    this.name = h("input.field", {
      id: "runs-views-name",
      maxlength: 80,
      placeholder: "Save what is shown as …",
      "aria-label": "Name of the view",
      autocomplete: "off",
      onkeydown: (event) => event.key === "Enter" && this.save(),
    });
    const save = h(
      "button.button.primary",
      {
        id: "runs-views-save",
        data: { needs: "command" },
        onclick: () => this.save(),
      },
      "Save",
    );
    fill(panel, this.list, h("div.popover-foot", this.name, save));
    this.fetch();
  }

  async fetch() {
    try {
      this.views = (await api.views("runs")).views;
      this.draw();
    } catch (error) {
      fill(this.list, h("p.sub", errorText(error)));
    }
  }

  draw() {
    if (!this.views.length) {
      fill(this.list, h("p.sub", "No view is saved yet. A view is the filter, order, groups and columns."));
      return;
    }
    fill(
      this.list,
      this.views.map((view) =>
        h(
          "div.view",
          { data: { view: view.name } },
          h(
            "button.link",
            {
              title: `Saved by ${view.saved_by}`,
              onclick: () => this.take(view),
            },
            h("bdi.cut", view.name),
          ),
          view.project ? h("span.sub", h("bdi", view.project)) : null,
          h(
            "button.link",
            {
              data: { needs: "command" },
              "aria-label": `Delete view ${view.name}`,
              onclick: () => this.drop(view),
            },
            "Delete",
          ),
        ),
      ),
    );
  }

  take(view) {
    this.popover.show(false);
    this.popover.button.focus();
    this.page.takeView(view.state);
  }

  /** A key of one project saves for that project, any other for all. */
  async save() {
    const name = this.name.value.trim();
    if (!name) {
      this.name.focus();
      return;
    }
    try {
      const me = await api.me();
      await api.put("/views", { kind: "runs", project: me.project || "", name, state: keptState(this.page.state) });
      this.name.value = "";
      toast(`View “${name}” is saved.`, "good");
      await this.fetch();
    } catch (error) {
      toast(errorText(error), "critical");
    }
  }

  async drop(view) {
    try {
      await api.deleteView(view);
      await this.fetch();
      toast(`View “${view.name}” is deleted.`, "info");
    } catch (error) {
      toast(errorText(error), "critical");
    }
  }
}
