// Readings of a GPU in words and tones: load, memory, temperature, power, throttling, ECC.

import { formatCount } from "../core/format.js";

export const readingOf = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

export const percentOf = (value) => `${Math.round(value)} %`;

export const gibOf = (mib) => `${(mib / 1024).toFixed(1)} GiB`;

/**
 * Clock throttle reasons that mean trouble, by NVML's bit (nvml.h, nvmlClocksEventReason*); idle and user caps don't.
 *
 * @type {[number, string][]}
 */
const THROTTLE = [
  [0x4, "power cap"],
  [0x8, "hardware slowdown"],
  [0x20, "heat, by software"],
  [0x40, "heat, by hardware"],
  [0x80, "power brake"],
];

/** A power cap at full load is how these GPUs run; the others cost speed that was paid for. */
const HARD = 0x8 | 0x20 | 0x40 | 0x80;

export const throttleWords = (fields) =>
  THROTTLE.filter(([bit]) => (readingOf(fields.throttle_reasons) || 0) & bit).map(([, words]) => words);

const hardThrottle = (fields) => ((readingOf(fields.throttle_reasons) || 0) & HARD) !== 0;

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
    share: (f) => (hardThrottle(f) ? 0.99 : throttleWords(f).length ? 0.5 : 0),
    has: (f) => readingOf(f.throttle_reasons) !== null,
    words: (f) => (hardThrottle(f) ? "slowed" : throttleWords(f).length ? "cap" : "–"),
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
