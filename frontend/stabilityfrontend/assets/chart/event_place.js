// Where an event is on an x axis: its band, its mark in the lane and its name ask here, so that they are at one place.

import { incidentKind } from "../core/kinds.js";
import { clockMs } from "./ticks.js";

/** Machines fail in the middle of a step: what came after the newest logged one is drawn there. */
export const seenStep = (step, last) =>
  typeof last === "number" && typeof step === "number" ? Math.min(step, last) : step;

/**
 * Where an incident begins; null where that is not known. On a clock what happened to machines is at its own time, which
 * no step may have; all else is where its step is. One of a discarded branch is at that branch's step, which may be
 * beyond the newest one that counts.
 */
export function beginOf(incident, axis, lastStep) {
  const timed = axis.clock && incidentKind(incident.kind).of_machine && typeof incident.since === "number";
  if (timed) return clockMs(incident.since);
  return axis.place(incident.dead ? incident.onset_step : seenStep(incident.onset_step, lastStep), incident.segment);
}
