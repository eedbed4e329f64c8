// The large chart's x axis: steps, wall time, or a metric. Zoom and lists speak of steps; this is where they are drawn.

import { plotlyText } from "../core/format.js";
import { lowerBound } from "./downsample.js";
import { clockTicks, valueTicks } from "./ticks.js";
import { atStep } from "./traces.js";

/** Pixels for a label of the axis. */
const LABEL_PX = 90;

/** Pixels right of the plot (`margin.r` in figures.py), and half the width of a letter. */
const [MARGIN_PX, HALF_LETTER_PX] = [20, 3.2];

/** Ticks whose words stay inside the chart at its right edge. */
function fitting(ticks, range, px) {
  const scale = px / (range[1] - range[0]);
  return ticks.filter(({ value, words }) => (range[1] - value) * scale + MARGIN_PX >= HALF_LETTER_PX * words.length);
}

const numbers = (ticks) => ({ tickvals: ticks.map((one) => one.value), ticktext: ticks.map((one) => one.words) });

/** What Plotly says of a place on the axis as a number: on a clock it says a date. */
const clockNumber = (said) => (typeof said === "number" ? said : Date.parse(`${String(said).replace(" ", "T")}Z`));

const STEPS = {
  place: atStep || ((step) => step),
  forkAt: (fork) => fork.step,
  number: Number,
  layout(range, px) {
    return {
      type: "linear",
      range,
      ...numbers(
        fitting(valueTicks(range, Math.max(2, Math.floor(px / LABEL_PX)), true), range, px).filter(
          (one) => one.value >= 0,
        ),
      ),
    };
  },
};

/** The least and the greatest x of lines inside a window of steps. */
function extent(lines, window) {
  let low = Infinity;
  let high = -Infinity;
  for (const piece of lines) {
    const from = window ? Math.max(piece.from, lowerBound(piece.steps, window[0])) : piece.from;
    const to = window ? Math.min(piece.to, lowerBound(piece.steps, window[1] + 1)) : piece.to;
    for (let index = from; index < to; index += 1) {
      const x = (piece.xs || piece.steps)[index];
      if (x === null || !Number.isFinite(x)) continue;
      if (x < low) low = x;
      if (x > high) high = x;
    }
  }
  return low <= high ? [low, high] : [0, 1];
}

/**
 * The axis that a page's large chart has now: `range(panel, window)`, `layout(range, pixels)`, `place(step, segment)`, `forkAt(fork)`
 * and `number(what Plotly says)`.
 */
export function axisOf(page) {
  const { x } = page.settings;
  if (x === "step" || !page.derived.ready()) return { ...STEPS, place: atStep, range: () => page.look.stepRange() };
  const clock = x === "time";
  return {
    number: clock ? clockNumber : Number,
    place: (step, segment) => page.derived.place(page.metric(), step, segment),
    forkAt: (fork) => page.derived.begins(page.metric(), fork.segment),
    range(panel, window) {
      const pieces = panel.lines.flatMap((line) => line.pieces);
      const [low, high] = extent(window ? pieces : [...pieces, ...panel.shown], window);
      const span = high - low || Math.abs(high) * 0.1 || 1;
      return [low - 0.01 * span, high + 0.03 * span];
    },
    layout(range, px) {
      const count = Math.max(2, Math.floor(px / LABEL_PX));
      if (clock)
        return {
          type: "date",
          range,
          ...numbers(fitting(clockTicks(range, count), range, px)),
          hoverformat: "%b %-d, %H:%M:%S",
          unifiedhovertitle: { text: "%{x|%b %-d, %H:%M:%S}" },
        };
      return {
        type: "linear",
        range,
        ...numbers(fitting(valueTicks(range, count), range, px)),
        unifiedhovertitle: { text: `${plotlyText(x)} %{x:.5~g}` },
      };
    },
  };
}
