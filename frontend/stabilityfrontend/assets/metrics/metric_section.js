// One section of metrics: a head that folds it, and its charts in chunks that exist only near what is seen.

import { fill, h, setShown, setText } from "../core/dom.js";
import { plural } from "../core/format.js";
import { MetricTile } from "./metric_tile.js";
import { CHUNK, chunksOf } from "./metric_tree.js";

/** Pixels of a tile of the usual size with the gap below it; a chunk that was there has its own height. */
const TILE_PX = 242;
/** A chunk that came near waits so long before it asks for points: who scrolls past needs none. */
const REST_MS = 120;
/** Making charts may take this much of a frame: scrolling comes first. */
const FRAME_MS = 4;

export class MetricSection {
  /** `owner`: MetricSections. */
  constructor(owner, prefix, title, key) {
    this.owner = owner;
    this.prefix = prefix;
    this.key = key;
    this.names = [];
    /** @type {{names: string[], element: HTMLElement, tiles: MetricTile[] | null, timer: any}[]} */
    this.chunks = [];
    this.count = h("span.sub");
    this.head = h(
      "button.fold",
      {
        "aria-expanded": "false",
        data: { section: prefix },
        onclick: () => owner.fold(this),
      },
      h("span.icon.icon-fold"),
      h("span", { dir: "auto" }, title),
      this.count,
    );
    this.body = h("div.metric-chunks", { hidden: true });
    this.element = h("div.metric-section", { data: { prefix } }, h("div.metric-head", this.head), this.body);
  }

  /** Show these names in this order, folded or not. */
  list(names, open) {
    setText(this.count, plural(names.length, "metric"));
    this.head.setAttribute("aria-expanded", String(open));
    setShown(this.body, open);
    const same = names.length === this.names.length && names.every((name, index) => name === this.names[index]);
    this.names = names;
    if (!open) this.clear();
    else if (!same || !this.chunks.length) this.layOut();
  }

  layOut() {
    const wanted = chunksOf(this.names);
    for (const chunk of this.chunks.splice(wanted.length)) this.drop(chunk);
    wanted.forEach((names, index) => {
      const chunk = this.chunks[index];
      if (!chunk) {
        const element = h("div.panels.metric-chunk");
        this.chunks.push({ names, element, tiles: null, timer: null });
        this.body.append(element);
        this.estimate(this.chunks[index]);
        this.owner.watch(element, this.chunks[index], this);
      } else if (names.join("\n") !== chunk.names.join("\n")) {
        chunk.names = names;
        if (chunk.tiles) this.show(chunk, true);
        else this.estimate(chunk);
      }
    });
  }

  /** The height of a chunk that has no charts yet. */
  estimate(chunk) {
    const columns = this.owner.columns();
    chunk.element.style.setProperty("min-height", `${TILE_PX * Math.ceil(chunk.names.length / columns)}px`);
  }

  /** A chunk came near what is seen, or left; `height`: it has this one, pixels. */
  near(chunk, near, height) {
    // What has the focus stays: charts above that load push it away, and the next key would meet nothing.
    if (!near && chunk.element.contains(document.activeElement)) return;
    clearTimeout(chunk.timer);
    if (near && !chunk.tiles) this.show(chunk, false);
    else if (!near && chunk.tiles) this.hide(chunk, height);
  }

  /** Make the tiles of a chunk: those that are there stay, the others come a few a frame. */
  show(chunk, again) {
    const kept = new Map((chunk.tiles || []).map((tile) => [tile.name, tile]));
    const names = new Set(chunk.names);
    for (const [name, tile] of kept) if (!names.has(name)) tile.close();
    chunk.tiles = chunk.names.flatMap((name) => kept.get(name) || []);
    fill(
      chunk.element,
      chunk.tiles.map((tile) => tile.element),
    );
    this.more(chunk, again);
  }

  /** Make the tiles of a chunk that are missing while the frame has time, the rest in the next one. */
  more(chunk, again) {
    const begun = performance.now();
    const there = new Map((chunk.tiles || []).map((tile) => [tile.name, tile]));
    chunk.names.some((name, index) => {
      if (there.has(name)) return false;
      if (!again && performance.now() - begun > FRAME_MS) return true;
      const tile = new MetricTile(this.owner, this.prefix, name);
      chunk.tiles.splice(index, 0, tile);
      chunk.element.insertBefore(tile.element, chunk.element.children[index] || null);
      return false;
    });
    clearTimeout(chunk.timer);
    if (chunk.tiles.length < chunk.names.length) {
      chunk.timer = setTimeout(() => requestAnimationFrame(() => chunk.tiles && this.more(chunk, false)));
      return;
    }
    chunk.element.style.removeProperty("min-height");
    chunk.timer = setTimeout(() => this.fetch(chunk), again ? 0 : REST_MS);
  }

  fetch(chunk) {
    if (chunk.tiles) this.owner.page.feed.fetchWanted([...new Set(chunk.tiles.flatMap((tile) => tile.metrics()))]);
  }

  hide(chunk, height) {
    for (const tile of chunk.tiles || []) tile.close();
    chunk.tiles = null; // what is under way stops
    fill(chunk.element);
    chunk.element.style.setProperty("min-height", `${height}px`);
  }

  drop(chunk) {
    clearTimeout(chunk.timer);
    this.owner.unwatch(chunk.element);
    for (const tile of chunk.tiles || []) tile.close();
    chunk.element.remove();
  }

  clear() {
    for (const chunk of this.chunks.splice(0)) this.drop(chunk);
  }

  /** The tile of a name, where it exists now. */
  tile(name) {
    for (const { tiles } of this.chunks) for (const tile of tiles || []) if (tile.name === name) return tile;
    return null;
  }

  /** Make the tile of a name anew: its head says something else. */
  renew(name) {
    const chunk = this.chunks[Math.floor(this.names.indexOf(name) / CHUNK)];
    const tile = this.tile(name);
    if (!chunk || !tile) return;
    tile.close();
    chunk.tiles = (chunk.tiles || []).filter((one) => one !== tile);
    this.show(chunk, true);
  }

  close() {
    this.clear();
    this.element.remove();
  }
}
