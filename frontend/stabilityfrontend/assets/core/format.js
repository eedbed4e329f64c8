// Numbers, times and counts as people read them. Three facts stay three facts: NaN, infinite, missing.

const MISSING = "–";

/** A number as the API sends it (non-finite ones are strings) as a number; null where it is missing. */
export function toNumber(value) {
  if (typeof value === "number") return value;
  if (value === "NaN") return NaN;
  if (value === "Infinity") return Infinity;
  if (value === "-Infinity") return -Infinity;
  return null;
}

/** A value with about four digits, or as many as are asked for. */
export function formatValue(value, digits = 4) {
  if (value === null || value === undefined) return MISSING;
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "+Inf" : "−Inf";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e15 || size < 1e-4)
    return value.toExponential(2).replace("-", "−").replace("e−", "e−").replace("e+", "e");
  if (size >= 1e9) return (value / 1e9).toPrecision(4) + " G";
  if (size >= 1e6) return (value / 1e6).toPrecision(4) + " M";
  if (size >= 1e4) return grouped.format(Math.round(value));
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

/** A value for a number that changes many times a second: always as many digits, so that nothing jumps. */
export function steady(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return formatValue(value);
  const size = Math.abs(value);
  if (size >= 1e4 || size < 1e-3) return formatValue(value);
  const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
  return value.toFixed(digits).replace("-", "−");
}

/** The same for a narrow cell, in eight signs: a small one is cut there, and its powers of ten go with it. */
export const narrow = (value) =>
  Number.isFinite(value) && value !== 0 && Math.abs(value) < 1e-3
    ? value.toExponential(2).replaceAll("-", "−")
    : steady(value);

// Made once: `toLocaleString` makes one for every number that it writes.
const grouped = new Intl.NumberFormat("en-US");
/** A whole number with separators. */
export const formatCount = (value) =>
  value === null || value === undefined ? MISSING : grouped.format(Math.round(value) || 0).replace("-", "−");

/** `1 step`, `63 steps`. */
export const plural = (count, word) => `${formatCount(count)} ${word}${count === 1 ? "" : "s"}`;

/** Bytes as people read them: `512 KiB`, `12.3 MiB`, `1.20 GiB`. */
export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const [unit, letters] =
    count >= 2 ** 30
      ? [2 ** 30, "GiB"]
      : count >= 2 ** 20
        ? [2 ** 20, "MiB"]
        : count >= 1024
          ? [1024, "KiB"]
          : [1, "B"];
  const value = count / unit;
  return `${unit === 1 ? value : value >= 100 ? Math.round(value) : Number(value.toPrecision(3))} ${letters}`;
}

/** Seconds as a duration with two units at most. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return MISSING;
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(Math.floor(s % 60)).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Clocks of machines differ by so much at most where NTP runs, seconds: less ahead than that is `now`. */
const SKEW_S = 5;

/** Whether a moment lies in the future: by no clock of ours, so the clock that it is from is ahead. */
const isAhead = (seconds) => seconds < -SKEW_S;

/** Seconds since something, in one unit: `now`, `12 s`, `4 min`, `3 h`, `2 d`; `clock 4 min ahead` of one in the future. */
export function formatAge(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return MISSING;
  if (isAhead(seconds)) return `clock ${formatAge(-seconds)} ahead`;
  if (seconds < 2) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** `ago` behind an age, except behind `now`. */
export function ago(seconds) {
  const words = formatAge(seconds);
  if (seconds !== null && isAhead(seconds)) return words;
  return words === "now" ? "just now" : `${words} ago`;
}

// Times likewise: a table of runs writes a hundred of them. The clock is that of the viewer's own language.
const clockFormat = new Intl.DateTimeFormat([], { timeStyle: "medium", hour12: false });
const hourFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const dayFormat = new Intl.DateTimeFormat("en-GB", {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
});
const momentFormat = new Intl.DateTimeFormat("en-GB", {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});
/** A time that no calendar has is written as what it is. */
const written = (format, seconds) => {
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? String(date) : format.format(date);
};

/** Clock time of unix seconds. */
export const clock = (seconds) => written(clockFormat, seconds);

/** Since when, in few letters: `03:12` of the last day, `12 Nov, 03:12` of one before. */
export function sinceClock(seconds, now = Date.now() / 1000) {
  return written(now - seconds < 43200 ? hourFormat : dayFormat, seconds);
}

/** A moment in UTC, `2026-11-26 03:12:05 UTC`: what every time shows under the pointer. */
export const inUtc = (seconds) =>
  seconds === null || seconds === undefined || !(Math.abs(seconds) < 8e12)
    ? ""
    : `${new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;

/** Date and clock time of unix seconds. */
export const moment = (seconds) =>
  seconds === null || seconds === undefined ? MISSING : written(momentFormat, seconds);

/** A name of ours as words: `step_time` as `step time`. */
export const readable = (name) => String(name || "").replace(/_/g, " ");

/** Words with a capital, as at the beginning of a line. */
export const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);

/** What the API or a job said, as a sentence: they begin small and end without a stop. Names stay as they are. */
export function sentence(text) {
  const words = String(text || "").trim();
  const begin = /^[a-z]+(?=[\s,;:]|$)/.test(words) ? words.charAt(0).toUpperCase() : words.charAt(0);
  return words ? begin + words.slice(1) + (/[.!?…]$/.test(words) ? "" : ".") : "";
}

/** An error of the API in one or two sentences. */
/** Random bytes in hexadecimal: a name for what may be sent twice. */
export const randomHex = (bytes) =>
  [...crypto.getRandomValues(new Uint8Array(bytes))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

export const errorText = (error) => [sentence(error.message), sentence(error.hint)].filter(Boolean).join(" ");

/** A share from 0 to 1 as per cent, in the strip as in lists: with a tenth, unless it is all or nothing. */
export const formatShare = (share) => `${(100 * share).toFixed(share > 0.9995 || share === 0 ? 0 : 1)} %`;
