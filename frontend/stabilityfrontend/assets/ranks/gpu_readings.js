// Readings of a GPU in words and tones: load, memory, temperature, power, throttling, ECC.

import { formatCount } from "../core/format.js";
import { gpuTable } from "../core/kinds.js";

export const readingOf = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

export const percentOf = (value) => `${Math.round(value)} %`;

export const gibOf = (mib) => `${(mib / 1024).toFixed(1)} GiB`;

/** Why its clocks are lowered: entries of the server's table. */
export const throttlesOf = (fields) =>
  gpuTable.throttles.filter(({ bit }) => (readingOf(fields.throttle_reasons) || 0) & bit);

/** One of three, by what the worst of the reasons costs. */
const byThrottle = (fields, none, capped, slowed) => {
  const found = throttlesOf(fields);
  return found.some(({ slows }) => slows) ? slowed : found.length ? capped : none;
};

/** Up to here a GPU is as warm as work makes it: H100 boards slow themselves down between 85 and 95 °C. */
const WARM_C = 75;

const warmth = (celsius) =>
  celsius < WARM_C ? (0.33 * (celsius - 30)) / (WARM_C - 30) : 0.34 + (0.65 * (celsius - WARM_C)) / 20;

/** What can be shown: `share(fields, gpu)` 0 to 1 on the ramp, `words(fields)` in a cell, `legend` of shares. */
export const READING_FIELDS = {
  util: {
    share: (f) => (readingOf(f.util_pct) || 0) / 100,
    has: (f) => readingOf(f.util_pct) !== null,
    words: (f) => percentOf(f.util_pct),
    legend: [
      [0, "0 %"],
      [0.5, "50 %"],
      [0.99, "100 %"],
    ],
    cold: true,
  },
  memory: {
    share: (f, gpu) => f.mem_used_mib / (totalMemory(f, gpu) || 81920),
    has: (f) => readingOf(f.mem_used_mib) !== null,
    words: (f) => gibOf(f.mem_used_mib).replace(" GiB", " G"),
    legend: [
      [0, "empty"],
      [0.5, "half"],
      [0.99, "full"],
    ],
    cold: true,
  },
  temp: {
    share: (f) => warmth(f.temp_c),
    has: (f) => readingOf(f.temp_c) !== null,
    words: (f) => `${Math.round(f.temp_c)}°`,
    legend: [
      [0, "30 °C"],
      [0.33, "75"],
      [0.6, "83"],
      [0.99, "95 °C"],
    ],
  },
  power: {
    share: (f) => f.power_w / (readingOf(f.power_limit_w) || 700),
    has: (f) => readingOf(f.power_w) !== null,
    words: (f) => `${Math.round(f.power_w)} W`,
    legend: [
      [0, "0 W"],
      [0.5, "half"],
      [0.99, "its limit"],
    ],
    cold: true,
  },
  throttle: {
    share: (f) => byThrottle(f, 0, 0.5, 0.99),
    has: (f) => readingOf(f.throttle_reasons) !== null,
    words: (f) => byThrottle(f, "–", "cap", "slowed"),
    legend: [
      [0, "full clock"],
      [0.5, "power cap"],
      [0.99, "slowed by heat or a brake"],
    ],
  },
  ecc: {
    share: (f) => (f.ecc_uncorrected > 0 ? 0.99 : f.ecc_corrected > 0 ? 0.34 : 0),
    has: (f) => readingOf(f.ecc_uncorrected) !== null || readingOf(f.ecc_corrected) !== null,
    words: (f) => formatCount((readingOf(f.ecc_uncorrected) || 0) + (readingOf(f.ecc_corrected) || 0)),
    legend: [
      [0, "none"],
      [0.34, "corrected"],
      [0.99, "uncorrected"],
    ],
  },
};

export const totalMemory = (fields, gpu) => readingOf(fields.mem_total_mib) || readingOf(gpu && gpu.memory_mib);
