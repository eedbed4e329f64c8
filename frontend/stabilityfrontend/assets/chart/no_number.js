// A line without one finite value has no y axis; what it says instead.

import { formatCount, formatValue } from "../core/format.js";

/**
 * `NaN at all 300 points`, or "" where a value is a number, and where there is no point at all.
 * @param {(number | null)[]} values what of the lines is seen
 * @param {boolean} [all] whether each point that was logged is among them
 */
export function noNumber(values, all = true) {
  let found = null;
  let points = 0;
  for (const value of values) {
    if (value === null) continue;
    if (Number.isFinite(value)) return "";
    const words = formatValue(value);
    found = found === null || found === words ? words : "NaN or infinite";
    points += 1;
  }
  if (found === null) return "";
  if (!all) return `${found} at every point`;
  return points === 1 ? `${found} at the only point` : `${found} at all ${formatCount(points)} points`;
}
