// Layouts under names, for all runs of a project: open, save, delete.

import { api } from "../core/api.js";
import { byId, fill, h, setText, toast } from "../core/dom.js";
import { errorText, formatCount } from "../core/format.js";
import { emptyLayout, fitsSaving, missingOf, readLayout } from "./layout.js";

export class LayoutMenu {
  /** `owner`: MetricSections. */
  constructor(owner) {
    this.owner = owner;
    this.listPlace = h("div.layout-list");
    this.trouble = h("div.sub", { role: "status" });
    this.name = /** @type {HTMLInputElement} */ (
      h("input.field", { placeholder: "Name", "aria-label": "Name of the layout", maxlength: 80, id: "layout-name" })
    );
    const form = h(
      "form.tool",
      { data: { needs: "command" }, onsubmit: (event) => this.save(event) },
      this.name,
      h("button.button", { type: "submit", id: "layout-save" }, "Save"),
    );
    this.menu = h(
      "div.chart-menu",
      { id: "layout-menu", popover: "auto", role: "dialog", "aria-label": "Layouts" },
      this.listPlace,
      form,
      h("button.button", { id: "layout-reset", onclick: () => this.reset() }, "Reset layout"),
      this.trouble,
    );
    const open = h(
      "button.toggle",
      { id: "layout-open", popovertarget: "layout-menu", "aria-haspopup": "dialog" },
      "Layouts",
    );
    this.menu.addEventListener("toggle", (event) => {
      if (/** @type {ToggleEvent} */ (event).newState !== "open") return;
      const box = open.getBoundingClientRect();
      const left = Math.max(8, Math.min(box.right - this.menu.offsetWidth, innerWidth - this.menu.offsetWidth - 8));
      Object.assign(this.menu.style, { left: `${left}px`, top: `${Math.min(box.bottom + 4, innerHeight - 200)}px` });
      this.fetch();
    });
    fill(byId("all-layouts"), open, this.menu);
  }

  get project() {
    return this.owner.page.run?.project || "";
  }

  async fetch() {
    try {
      const { views } = await api.views("layout", this.project);
      this.draw(views);
      setText(this.trouble, "");
    } catch (error) {
      setText(this.trouble, errorText(error));
    }
  }

  draw(views) {
    fill(
      this.listPlace,
      views.length
        ? views.map((view) =>
            h(
              "div.layout-row",
              { data: { layout: view.name } },
              h(
                "button.layout-name",
                {
                  title: `Saved by ${view.saved_by}`,
                  onclick: () => this.open(view),
                },
                view.name,
              ),
              view.project === "" && this.project !== "" ? h("span.sub", "all projects") : null,
              h(
                "button.icon-button.tiny",
                {
                  "aria-label": `Delete the layout ${view.name}`,
                  data: { needs: "command" },
                  onclick: () => this.remove(view),
                },
                "×",
              ),
            ),
          )
        : h("div.sub", "No layout is saved for this project."),
    );
  }

  open(view) {
    const layout = readLayout(view.state);
    this.owner.take(layout);
    this.name.value = view.name;
    this.menu.hidePopover();
    const missing = missingOf(layout, this.owner.page.nameSet);
    if (missing.length) toast(`${formatCount(missing.length)} of its metrics are not in this run.`, "warning");
  }

  async save(event) {
    event.preventDefault();
    const name = this.name.value.trim();
    if (!name) return setText(this.trouble, "Give it a name.");
    if (!fitsSaving(this.owner.layout))
      return setText(this.trouble, "It is too large to be saved: reset the order of some sections.");
    try {
      await api.saveView({ kind: "layout", project: this.project, name, state: this.owner.layout });
      await this.fetch();
      setText(this.trouble, `Saved as ${name}.`);
    } catch (error) {
      setText(this.trouble, errorText(error));
    }
    return undefined;
  }

  async remove(view) {
    try {
      await api.deleteView({ kind: "layout", project: view.project, name: view.name });
      await this.fetch();
    } catch (error) {
      setText(this.trouble, errorText(error));
    }
  }

  reset() {
    this.owner.take(emptyLayout());
    this.menu.hidePopover();
  }

  close() {
    if (this.menu.matches(":popover-open")) this.menu.hidePopover();
  }
}
