// The checkpoints of the rollback dialog: those that can be gone back to, and those that are there and can't.

import { whatItIs, whyNot } from "../core/checkpoint.js";
import { h } from "../core/dom.js";
import { ago, formatCount, sentence } from "../core/format.js";

/** The rows of a dialog (rollback_dialog.js); `choose` is told the step that somebody takes. */
export function checkpointChoices(dialog, choose) {
  const { checkpoints, withheld, to_step: best, incident_id: about, none } = dialog.offered();
  const radio = (one) => {
    const input = h("input", {
      type: "radio",
      name: "rollback-step",
      value: one.step,
      onchange: () => choose(one.step),
    });
    input.checked = one.step === dialog.chosen;
    return input;
  };
  const others = withheld.map((one) => withheldRow(one, one.unverified ? radio(one) : null));
  if (!checkpoints.length) return [h("div.nothing", none), others];
  const rows = checkpoints.map((one) => {
    return h(
      "label",
      {
        class: `choice${one.inside ? " late" : ""}`,
        data: { checkpoint: `${one.step} ${one.path}` },
        title: one.inside ? sentence(one.inside.text) : one.path,
      },
      radio(one),
      h("span.choice-step", `step ${formatCount(one.step)}`),
      h("span.sub", [one.where, whatItIs(one)].filter(Boolean).join(" · ")),
      h("span.grow"),
      one.inside
        ? h("span.chip.warning", "inside an incident")
        : one.step === best
          ? h("span.chip.accent", about ? "suggested" : "newest")
          : null,
      h("span.sub", ago(dialog.page.now() - one.time)),
    );
  });
  return [rows, others];
}

/** One that is there and is not offered, and why; `input` chooses it all the same, where only that is against it. */
function withheldRow(one, input) {
  return h(
    input ? "label" : "div",
    { class: "choice withheld", title: one.path, data: { withheld: one.step } },
    input,
    h("span.choice-step", `step ${formatCount(one.step)}`),
    h("span.sub", sentence(one.unfit)),
    h("span.grow"),
    h("span.chip", whyNot(one)),
  );
}
