// A wall of small cells on a canvas: one for each rank or GPU, those of a node side by side. Ranks and GPUs share the
// layout, so that a node stands at the same place in both. Pointer, keyboard and a tip; a click pins the tip.

import { fill, h, patch, setShown, setText } from "../core/dom.js";

/** `[width, height]` of a cell, the largest that fits is taken. */
const SIZES = [
  [58, 30],
  [44, 26],
  [32, 22],
  [24, 17],
  [19, 14],
  [15, 11],
  [12, 9],
  [10, 8],
  [8, 7],
];
/** Height that a wall may take before its cells shrink, pixels; on a tall window this share of it. */
const TALL = 470;
const TALL_SHARE = 0.45;
/** The same on a narrow screen, where people scroll anyway. */
const [NARROW, TALL_NARROW] = [600, 1100];
/** Cells side by side at most; a node with more has several rows. */
const ACROSS = 8;
const [GAP, GROUP_X, GROUP_Y, PAD] = [2, 14, 4, 14];
/** From this width on there are words in a cell. */
const WORDS_PX = 32;
/** From this width on there is a letter where there are no words. */
const LETTER_PX = 14;

/** Inks by colour: there are as many as the themes have. */
const inks = new Map();
const dark = (color) => {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b < 125;
};
/** White or black, whichever is read on a colour. */
export function inkOn(color) {
  if (!inks.has(color)) inks.set(color, /^#[0-9a-f]{6}$/i.test(color) ? (dark(color) ? "#ffffff" : "#0a0d12") : color);
  return inks.get(color);
}

/** A mark inside a cell: shapes, not colours alone, say what is wrong. */
function cellMark(context, kind, x, y, w, h, ink) {
  const r = Math.max(2, Math.min(w, h) / 2 - 2.2);
  const [cx, cy] = [x + w / 2, y + h / 2];
  context.strokeStyle = context.fillStyle = ink;
  context.lineWidth = Math.max(1.3, Math.min(2.2, r / 2.6));
  context.lineCap = "round";
  context.beginPath();
  if (kind === "cross") {
    context.moveTo(cx - r, cy - r);
    context.lineTo(cx + r, cy + r);
    context.moveTo(cx + r, cy - r);
    context.lineTo(cx - r, cy + r);
  } else if (kind === "bang") {
    context.moveTo(cx, cy - r);
    context.lineTo(cx, cy + r * 0.25);
    context.moveTo(cx, cy + r);
    context.lineTo(cx, cy + r);
  } else if (kind === "dash") {
    context.moveTo(cx - r * 0.7, cy);
    context.lineTo(cx + r * 0.7, cy);
  } else if (kind === "dots") {
    for (const at of [-1, 0, 1]) {
      context.moveTo(cx + at * r * 0.9, cy);
      context.lineTo(cx + at * r * 0.9, cy);
    }
  } else if (kind === "tick") {
    context.moveTo(cx - r * 0.8, cy);
    context.lineTo(cx - r * 0.2, cy + r * 0.6);
    context.lineTo(cx + r * 0.8, cy - r * 0.6);
  } else if (kind === "down" || kind === "up") {
    const d = kind === "down" ? 1 : -1;
    context.moveTo(cx - r, cy - d * r * 0.6);
    context.lineTo(cx + r, cy - d * r * 0.6);
    context.lineTo(cx, cy + d * r * 0.8);
    context.closePath();
    context.fill();
    return;
  } else if (kind === "question") {
    context.font = `700 ${Math.round(2.2 * r + 3)}px sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText("?", cx, cy + 0.5);
    return;
  }
  context.stroke();
}

/** Whether two cells of one place look the same. */
function alike(one, other, { w }) {
  if (one.fill !== other.fill || one.mark !== other.mark || one.hollow !== other.hollow || one.ring !== other.ring)
    return false;
  return (w < WORDS_PX || one.text === other.text) && (w < LETTER_PX || one.letter === other.letter);
}

export class CellMap {
  /**
   * `element`: where; `label`: what it is for those who can't see it; `describe(cell)`: `{title, lines: [[name, words]], tone,
   * link}` for the tip; `name(cell)`: one line for a screen reader.
   */
  constructor(element, { label, describe, name }) {
    /** @type {string[]} */
    this.tones = [];
    this.element = element;
    this.describe = describe;
    this.name = name;
    this.canvas = h("canvas", {
      tabindex: "0",
      role: "application",
      "aria-label": label,
      "aria-roledescription": "map of cells",
    });
    this.tip = h("div.tip.cell-tip", { hidden: true });
    this.said = h("div.unseen", { role: "status", "aria-live": "polite" });
    fill(element, this.canvas, this.tip, this.said);
    this.groups = this.colors = this.font = null;
    this.cells = [];
    this.at = -1;
    /** The place whose outline is drawn. */
    this.chosen = -1;
    this.pinned = false;
    this.canvas.addEventListener("pointermove", (event) => this.pinned || this.point(this.find(event)));
    this.canvas.addEventListener("pointerleave", () => this.pinned || this.point(-1));
    this.canvas.addEventListener("click", (event) => {
      const at = this.find(event);
      this.pinned = at >= 0 && !(this.pinned && at === this.at);
      this.point(at);
    });
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    this.canvas.addEventListener("blur", () => this.pinned || this.point(-1));
    this.sized = new ResizeObserver(() => this.draw());
    this.sized.observe(element);
    this.outside = (event) => {
      if (this.pinned && !element.contains(event.target)) {
        this.pinned = false;
        this.point(-1);
      }
    };
    document.addEventListener("pointerdown", this.outside);
  }

  /** `groups`: `[{label, cells: [{key, fill, mark, hollow, ring, strip, text}]}]`; `colors` of the theme. */
  set(groups, colors, font) {
    const key = this.at >= 0 && this.cells[this.at] ? this.cells[this.at].key : null;
    Object.assign(this, { groups, colors, font });
    this.draw();
    if (key !== null) {
      this.at = this.cells.findIndex((cell) => cell.key === key);
      this.showTip();
    }
  }

  /** The largest cells with which everything fits; names stand beside a node where there is room for them. */
  fit(width, highest) {
    const { groups } = this;
    const across = Math.min(ACROSS, Math.max(1, ...groups.map((group) => group.cells.length)));
    const rows = Math.max(1, ...groups.map((group) => Math.ceil(group.cells.length / across)));
    const names = groups.some((group) => group.label);
    const longest = names ? Math.min(13, Math.max(...groups.map((group) => group.label.length))) : 0;
    // Whole pixels: on halves of them every edge is blurred.
    const space = names ? Math.ceil(6.2 * longest + 8) : 0;
    let best = /** @type {any} */ (null);
    for (const [w, h] of SIZES) {
      const box = space + across * (w + GAP) - GAP;
      const columns = Math.max(1, Math.min(groups.length, Math.floor((width - 2 * PAD + GROUP_X) / (box + GROUP_X))));
      const lines = Math.ceil(groups.length / columns);
      const tall = lines * (rows * (h + GAP) - GAP + GROUP_Y) - GROUP_Y;
      best = { w, h, across, rows, space, box, columns, lines, height: tall + 2 * PAD };
      if (box <= width - 2 * PAD && tall <= highest) break;
    }
    return best;
  }

  /** Bring the canvas up to date: all of it where its layout is another, else only the cells that look different now. */
  draw() {
    const { canvas, element, groups, colors } = this;
    const width = element.clientWidth;
    if (!groups || width < 60) return;
    const ratio = window.devicePixelRatio || 1;
    const highest = width < NARROW ? TALL_NARROW : Math.max(TALL, Math.round(TALL_SHARE * window.innerHeight));
    const shape = JSON.stringify([
      width,
      highest,
      ratio,
      this.font,
      colors.text,
      groups.map((group) => [group.label, group.cells.length]),
    ]);
    const context = canvas.getContext("2d");
    const whole = shape !== this.shape;
    if (whole) {
      this.shape = shape;
      this.fitted = this.fit(width, highest);
      const [w, h] = [Math.round(width * ratio), Math.round(this.fitted.height * ratio)];
      if (canvas.width !== w || canvas.height !== h) {
        Object.assign(canvas, { width: w, height: h });
        canvas.style.width = `${width}px`;
        canvas.style.height = `${this.fitted.height}px`;
      }
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, this.fitted.height);
      this.tones = [];
    }
    const fit = /** @type {any} */ (this.fitted);
    const before = this.cells;
    this.cells = /** @type {any[]} */ ([]);
    const changed = [];
    const ringed = [];
    // Node after node downwards, as people read a list.
    groups.forEach((group, index) => {
      const left = PAD + Math.floor(index / fit.lines) * (fit.box + GROUP_X);
      const top = PAD + (index % fit.lines) * (fit.rows * (fit.h + GAP) - GAP + GROUP_Y);
      if (fit.space && this.tones[index] !== group.tone) this.label(context, group, left, top, fit);
      this.tones[index] = group.tone;
      group.cells.forEach((cell, at) => {
        const place = this.cells.length;
        const known = whole ? null : before[place];
        cell.x = left + fit.space + (at % fit.across) * (fit.w + GAP);
        cell.y = top + Math.floor(at / fit.across) * (fit.h + GAP);
        this.cells.push(cell);
        const same = known && (known === cell || alike(known, cell, fit));
        if (!same || (place === this.at) !== (place === this.chosen)) changed.push(cell);
        else if (cell.ring || place === this.at) ringed.push(cell);
      });
    });
    this.chosen = this.at;
    if (!changed.length) return;
    // A ring reaches into the gap, where a neighbour that is drawn again would cut it.
    changed.push(...ringed);
    if (!whole)
      for (const { x, y } of changed)
        context.clearRect(x - GAP + 0.5, y - GAP + 0.5, fit.w + 2 * GAP - 1, fit.h + 2 * GAP - 1);
    for (const cell of changed) this.cell(context, cell, cell.x, cell.y, fit);
    for (const cell of changed) {
      // On small cells a ring that is wider than its half of the gap would hide what it is around.
      if (cell.ring) this.outline(context, cell, colors[cell.ring], fit.w < LETTER_PX ? 1 : 1.6);
      if (cell === this.cells[this.at]) this.outline(context, cell, colors.text, 2);
    }
  }

  label(context, group, left, top, fit) {
    // Where only this name has another tone, the one of before goes first; its cells and their rings stay.
    context.clearRect(left - GROUP_X + 3, top - 2, fit.space + GROUP_X - 6, fit.h + 4);
    const size = Math.min(11, fit.h + 2);
    context.font = `${group.tone ? 650 : 400} ${size}px ${this.font}`;
    context.fillStyle = group.tone ? this.colors[group.tone] : this.colors.muted;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const most = Math.floor((fit.space - 8) / 6.2);
    context.fillText(
      group.label.length > most ? `…${group.label.slice(1 - most)}` : group.label,
      left + fit.space - 7,
      top + fit.h / 2 + 0.5,
    );
  }

  cell(context, cell, x, y, { w, h }) {
    if (cell.hollow) {
      context.strokeStyle = cell.fill;
      context.lineWidth = 1;
      context.setLineDash(cell.mark === "hatch" ? [2, 2] : []);
      context.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
      context.setLineDash([]);
    } else {
      context.fillStyle = cell.fill;
      context.fillRect(x, y, w, h);
    }
    const ink = cell.hollow ? cell.fill : inkOn(cell.fill);
    if (cell.mark === "hatch") this.hatch(context, x, y, w, h, cell.fill);
    // Setting a font costs more than the rest of a small cell.
    const roomy = cell.text && w >= WORDS_PX;
    if (roomy) context.font = `600 ${h >= 26 ? 12 : 11}px ${this.font}`;
    const sign = cell.mark && cell.mark !== "hatch";
    // Words give way to the mark where there is no room for both.
    const words = roomy && (!sign || context.measureText(cell.text).width + Math.min(14, h) + 9 <= w);
    if (words) {
      context.fillStyle = ink;
      context.textAlign = sign ? "left" : "center";
      context.textBaseline = "middle";
      context.fillText(cell.text, sign ? x + 5 : x + w / 2, y + h / 2 + 0.5, w - 6);
    } else if (cell.letter && w >= LETTER_PX && !cell.mark) {
      context.font = `600 ${Math.min(11, h - 2)}px ${this.font}`;
      context.fillStyle = ink;
      context.globalAlpha = 0.75;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(cell.letter, x + w / 2, y + h / 2 + 0.5);
      context.globalAlpha = 1;
    }
    if (sign) {
      const box = Math.min(14, w, h);
      cellMark(context, cell.mark, words ? x + w - box - 2 : x + (w - box) / 2, y + (h - box) / 2, box, box, ink);
    }
  }

  hatch(context, x, y, w, h, color) {
    context.save();
    context.beginPath();
    context.rect(x, y, w, h);
    context.clip();
    context.beginPath();
    for (let at = -h; at < w; at += 4) {
      context.moveTo(x + at, y + h);
      context.lineTo(x + at + h, y);
    }
    context.lineWidth = 1;
    context.strokeStyle = color;
    context.globalAlpha = 0.7;
    context.stroke();
    context.restore();
  }

  outline(context, { x, y }, color, width) {
    const { w, h } = this.fitted;
    context.strokeStyle = color;
    context.lineWidth = width;
    context.strokeRect(x - 0.5, y - 0.5, w + 1, h + 1);
  }

  // -- pointer and keys -----------------------------------------------------------------------------------------

  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const { w, h } = this.fitted || { w: 0, h: 0 };
    return this.cells.findIndex(({ x, y }) => px >= x - 1 && px <= x + w + 1 && py >= y - 1 && py <= y + h + 1);
  }

  onKey(event) {
    const steps = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: this.fitted ? this.fitted.across : 1,
      ArrowUp: this.fitted ? -this.fitted.across : -1,
    };
    if (event.key in steps) {
      this.point(Math.max(0, Math.min(this.cells.length - 1, this.at < 0 ? 0 : this.at + steps[event.key])));
      if (this.at >= 0) setText(this.said, this.name(this.cells[this.at]));
    } else if (event.key === "Home" || event.key === "End")
      this.point(event.key === "Home" ? 0 : this.cells.length - 1);
    else if (event.key === "Escape") {
      this.pinned = false;
      this.point(-1);
    } else if (event.key === "Enter" || event.key === " ") {
      this.pinned = this.at >= 0 && !this.pinned;
      this.showTip();
    } else return;
    event.preventDefault();
  }

  point(at) {
    if (at === this.at && !this.pinned) return;
    this.at = at;
    this.draw();
    this.showTip();
  }

  showTip() {
    const cell = this.cells[this.at];
    setShown(this.tip, Boolean(cell));
    this.tip.classList.toggle("pinned", this.pinned);
    if (!cell) return;
    const { title, lines, tone, link } = this.describe(cell);
    patch(
      this.tip,
      h("b", { class: `cell-tip-title ${tone || ""}` }, title),
      h(
        "dl",
        lines
          .filter(([, words]) => words !== null && words !== "")
          .map(([name, words]) => [h("dt", name), h("dd", words)])
          .flat(),
      ),
      link ? h("a", { href: link.href }, link.text) : null,
    );
    const { w: across, h: down } = this.fitted;
    const [wide, tall] = [this.tip.offsetWidth, this.tip.offsetHeight];
    const room = this.element.clientWidth;
    const left = cell.x + across + 10 + wide <= room ? cell.x + across + 10 : Math.max(4, cell.x - wide - 10);
    // It may hang over the foot of the wall, but not over the top of the window.
    const above = this.canvas.getBoundingClientRect().top;
    const top = Math.min(cell.y + down + 6, Math.max(-above + 60, window.innerHeight - above - tall - 8));
    this.tip.style.left = `${left}px`;
    this.tip.style.top = `${top}px`;
  }

  close() {
    this.sized.disconnect();
    document.removeEventListener("pointerdown", this.outside);
  }
}
