// What stands in the place of the table where it has no row: the first lines of code, or a way out of a filter.

import { fill, h } from "../core/dom.js";
import { boardUrl } from "../core/place.js";

const SNIPPET = [
  "import stabilityclient",
  "",
  "run = stabilityclient.init(",
  '    project="vlm", name="interleaved-7b", url="ORIGIN"',
  ")",
  "",
  "@run.on_rollback  # can=(...): what it can change beside the step",
  "def restore(rollback):",
  "    load_checkpoint(model, optimizer, step=rollback.to_step)",
  "",
  "for step in run.steps(0, 10_000):",
  '    run.log(step, {"loss": loss, "grad_norm": norm, "lr": lr})',
  "run.finish()",
].join("\n");

/** `kind`: `none`, no run at all; `filter`: none fits; `clear()` takes the filter away. */
export function drawNoRuns(place, kind, clear) {
  if (place.dataset.kind === kind) return;
  place.dataset.kind = kind;
  if (kind === "filter") {
    fill(
      place,
      h(
        "div.empty",
        h("h2", "No run fits the filter"),
        h("p", "All runs are still there."),
        h("button.button.primary", { id: "runs-clear", onclick: clear }, "Clear the filter"),
      ),
    );
    return;
  }
  fill(
    place,
    h(
      "div.empty",
      h("h2", "No run yet"),
      h(
        "p",
        "See a real training job spike and get rolled back: ",
        h("code", "make demo"),
        ". Or put these lines into your own:",
      ),
      h("pre", h("code", SNIPPET.replace("ORIGIN", boardUrl()))),
      h("p.sub", "The page changes by itself when the first point arrives."),
    ),
  );
}
