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

/** `DCP · 3.20 GiB · took 12 s`, as far as it is known; why it is not. */
export function whatItIs(one) {
  const took = asFinite(one.took_s);
  return [
    KINDS[one.kind] || "",
    asFinite(one.size_bytes) === null ? "" : bytes(one.size_bytes),
    took === null || took < 1 ? "" : `took ${duration(took)}`, // less matters to nobody
    asText(one.unchecked),
  ]
    .filter(Boolean)
    .join(" · ");
}

/** Why it is not offered, in two or three words; the sentence is `unfit`. */
export function whyNot(one) {
  if (one.dead) return "on a discarded branch";
  if (!one.available) return "no longer on disk";
  if (!asText(one.unfit)) return "";
  if (one.writing) return "still being written";
  return one.complete === false ? "incomplete" : `of ${one.world_size} ranks`;
}
