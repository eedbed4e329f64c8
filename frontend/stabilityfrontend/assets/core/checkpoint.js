// What is known of a checkpoint's files, in words; whether it can be gone back to says the server.

import { asFinite, asText } from "./as_type.js";
import { bytes, duration } from "./format.js";

const KINDS = {
  dcp: "DCP",
  deepspeed: "DeepSpeed",
  hugging_face: "Hugging Face",
  lightning: "Lightning",
  megatron: "Megatron",
};

/** Whether it is offered. An older server names nothing in `unfit`. */
export const usable = (one) => one.available && !one.dead && !one.unfit;

/** A number stays with its unit where a line ends. */
const together = (words) => words.replaceAll(" ", "\u00a0");

/** Why it was not checked, "" where it was or nobody had to. */
export const unchecked = (one) => asText(one.unchecked);

/** `DCP · 3.20 GiB · took 12 s`, as far as it is known; `why`: why it is not, where there is room for that. */
export function whatItIs(one, why = true) {
  const took = asFinite(one.took_s);
  return [
    KINDS[one.kind] || "",
    why || !unchecked(one) ? unchecked(one) : "not checked",
    asFinite(one.size_bytes) === null ? "" : together(bytes(one.size_bytes)),
    took === null || took < 1 ? "" : together(`took ${duration(took)}`), // less matters to nobody
  ]
    .filter(Boolean)
    .join(" · ");
}

/** Why it is not offered, in two or three words; the sentence is `unfit`. */
export function whyNot(one) {
  if (one.dead) return "on a discarded branch";
  if (!one.available) return "no longer on disk";
  if (!asText(one.unfit)) return "";
  if (one.unverified) return "not verified";
  if (one.writing) return "still being written";
  return one.complete === false ? "incomplete" : `of ${one.world_size} ranks`;
}
