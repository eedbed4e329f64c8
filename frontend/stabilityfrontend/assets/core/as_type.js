// What came as JSON, in the shape that it should have: every field may be absent, of an older server, or nonsense.

/** Entries of a list and characters of a text that are shown; the server sends fewer. */
const MOST = 64;

const LONGEST = 4000;

/** A list, whatever came. */
export const asList = (value) => (Array.isArray(value) ? value.slice(0, MOST) : []);

/** An object, whatever came. */
export const asRecord = (value) => (value && typeof value === "object" && !Array.isArray(value) ? value : {});

/** A text or a number as text; "" for anything else. */
export const asText = (value) =>
  typeof value === "string"
    ? value.slice(0, LONGEST)
    : typeof value === "number" && Number.isFinite(value)
      ? String(value)
      : "";

/** A text of any length, for where it may be long. */
export const asWholeText = (value) => (typeof value === "string" ? value : "");

export const asFinite = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

/** A step that a process has told; null for -1, before its first one. */
export const toldStep = (value) => (asFinite(value) === null || value < 0 ? null : value);

export const asTexts = (value) => asList(value).map(asText).filter(Boolean);
