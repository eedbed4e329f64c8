// The tab: its title and its icon say what is wrong while another tab is looked at: how many incidents are open, the
// worst one and since when. They go on in a hidden tab.

import { sinceClock } from "../core/format.js";

/** Counts above it are `9+`, so that the icon can be read at 16 pixels. */
const MOST = 9;
/** Fill of the icon by tone: the same in both themes, since a browser's tab bar has its own. */
const FILLS = { critical: "#d61f3c", warning: "#a86200", info: "#0b6aa8", calm: "#6b7686" };
/** Shapes of the table of appearances, in a box of 32: where the number stands in them, and how large. */
const SHAPES = {
  octagon: { path: "M10 1h12l9 9v12l-9 9H10l-9-9V10z", y: 22.5, size: 19 },
  triangle: { path: "M16 1 31.5 30.5H.5z", y: 27, size: 16 },
  disc: { path: "M16 1a15 15 0 1 0 0 30 15 15 0 0 0 0-30z", y: 22.5, size: 19 },
  ring: { path: "M16 1a15 15 0 1 0 0 30 15 15 0 0 0 0-30z", y: 22.5, size: 19 },
};

/**
 * The words of a tab.
 *
 * `name`: what is open; `open`: incidents; `worst`: `{word, since, where}` of the worst one, or null; `rest`: what is
 * said where nothing is open; `stale`: since when the server does not answer, unix seconds, or null.
 *
 * @param {{name: string, open?: number, worst?: any, rest?: string, stale?: number | null}} facts
 */
export function tabTitle({ name, open = 0, worst = null, rest = "", stale = null }) {
  const what = worst
    ? [worst.word, worst.where ? `in ${worst.where}` : "", worst.since ? `since ${sinceClock(worst.since)}` : ""]
    : [rest];
  const words = [name, what.filter(Boolean).join(" ")].filter(Boolean).join(" · ");
  if (stale !== null) return `(?) ${name} · no answer since ${sinceClock(stale)}`;
  return open ? `(${open}) ${words}` : words;
}

/** The icon as a picture in its address; null where nothing is open: then it is the product's mark. */
export function tabIcon({ open, tone, shape, stale = false }) {
  if (!open && !stale) return null;
  const { path, y, size } = SHAPES[stale ? "ring" : shape] || SHAPES.disc;
  const fill = FILLS[stale ? "calm" : tone] || FILLS.calm;
  const words = stale ? "?" : open > MOST ? `${MOST}+` : String(open);
  const small = words.length > 1 ? size - 4 : size;
  const picture =
    `<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'><path d='${path}' fill='${fill}'/>` +
    `<text x='16' y='${y}' font-family='sans-serif' font-size='${small}' font-weight='700' fill='white' ` +
    `text-anchor='middle'>${words}</text></svg>`;
  return `data:image/svg+xml,${encodeURIComponent(picture)}`;
}

let mark = /** @type {string | null} */ (null);

/** Show both; nothing is written where it is so already. */
export function drawTab(facts) {
  const title = tabTitle(facts);
  if (document.title !== title) document.title = title;
  const link = /** @type {HTMLLinkElement | null} */ (document.querySelector("link[rel='icon']"));
  if (!link) return;
  mark ??= link.href;
  const { tone = "calm", shape = "ring" } = facts.worst || {};
  const icon = tabIcon({ open: facts.open, tone, shape, stale: facts.stale !== null && facts.stale !== undefined });
  if (link.href !== (icon || mark)) link.href = icon || mark;
}
