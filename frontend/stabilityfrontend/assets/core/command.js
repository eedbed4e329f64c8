// What became of a command: the server says how far it is; this is how its stages are listed.

import { h } from "./dom.js";

/** The stages of a command as a list. @param {import("../../../types/api").Stage[]} stages */
export const stageList = (stages) =>
  h(
    "ol",
    { class: "stages" },
    stages.map(({ key, label, state, after_s: after }) =>
      h(
        "li",
        { class: state === "waiting" ? "" : state, data: { stage: key } },
        h("i", {}),
        h("span", {}, label),
        h("span", { class: "grow" }),
        h("span", { class: "num" }, after === null ? "" : `+${after.toFixed(1)} s`),
      ),
    ),
  );
