// All metrics of a run as charts: pinned ones on top, then sections by prefix. A chart exists, and asks for points, only
// near what is seen: ten thousand metrics cost what the dozen in sight do.

import { api } from "../core/api.js";
import { byId, fill, h, setShown, setText, toast } from "../core/dom.js";
import { errorText, formatCount, plural } from "../core/format.js";
import { addressOf, emptyLayout, keepLayout, keptLayout, LayoutMenu, layoutIn, missingOf } from "./layout.js";
import { MetricTile, nextSize } from "./metric_tile.js";
import { CHUNK, chunksOf, EXPRESSION, inOrder, movedTo, OTHER, searchOf, sectionsOf } from "./metric_tree.js";

// -- One section of metrics: a head that folds it, and its charts in chunks that exist only near what is seen.

/** Pixels of a tile of the usual size with the gap below it; a chunk that was there has its own height. */
const TILE_PX = 242;
/** A chunk that came near waits so long before it asks for points: who scrolls past needs none. */
const REST_MS = 120;
/** Making charts may take this much of a frame: scrolling comes first. */
const FRAME_MS = 4;

class MetricSection {
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

/** The key of the pinned section among prefixes: no name begins with it. */
const PINNED = "\u0000pinned";
/** Charts that are pinned at most. */
const PINS = 48;
/** Sections are unfolded at first as long as they have no more charts than this together. */
const OPEN_AT_FIRST = 24;
/** How far outside of the window a chunk comes to life, pixels. */
const NEAR_PX = 500;
const KEEP_MS = 400;

/** The panel of all metrics as charts. */
export const allMetrics = () =>
  h(
    "section.panel",
    { id: "all-panel" },
    h(
      "div.panel-head",
      h(
        "button.fold",
        { id: "all-fold", "aria-expanded": "true", "aria-controls": "all-metrics" },
        h("span.icon.icon-fold"),
        "All metrics",
      ),
      h("span.sub", { id: "all-note" }),
      h("span.grow"),
      h("div", { id: "all-search" }),
      h("div", { id: "all-layouts" }),
    ),
    h("div", { id: "all-trouble", role: "status" }),
    h("div", { id: "all-missing", hidden: true }),
    h("div.nothing", { id: "all-none", hidden: true }),
    h("div", { id: "all-metrics" }),
  );

export class MetricSections {
  /** `page` as in run_page.js. */
  constructor(page) {
    this.page = page;
    this.given = layoutIn(location.search);
    this.layout = this.given || emptyLayout();
    this.open = true;
    this.search = searchOf(this.layout.find);
    this.sections = new Map();
    this.chunks = new Map();
    this.field = /** @type {HTMLInputElement} */ (h("input"));
    /** The chart in full screen. @type {HTMLDialogElement | null} */
    this.dialog = null;
    this.seen = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting, boundingClientRect } of entries) {
          const [section, chunk] = this.chunks.get(target) || [];
          if (section) section.near(chunk, isIntersecting, boundingClientRect.height);
        }
      },
      { rootMargin: `${NEAR_PX}px 0px` },
    );
    this.listen();
    this.menu = new LayoutMenu(this);
  }

  listen() {
    this.field = /** @type {HTMLInputElement} */ (
      h("input.field", {
        type: "search",
        placeholder: "words, /regex/ or = loss/a - loss/b",
        "aria-label": "Search metrics, or an expression after =",
        autocomplete: "off",
        id: "all-filter",
        value: this.layout.find,
      })
    );
    this.field.addEventListener("input", () => this.typed());
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.search.kind === "expression") this.addExpression(this.search.text);
      else if (event.key === "Escape" && this.field.value) {
        event.stopPropagation();
        this.field.value = "";
        this.typed();
      }
    });
    fill(byId("all-search"), this.field);
    byId("all-fold").addEventListener("click", () => this.setOpen(!this.open));
  }

  setOpen(open) {
    this.open = open;
    byId("all-fold").setAttribute("aria-expanded", String(open));
    setShown(byId("all-metrics"), open);
    this.list();
  }

  typed() {
    const found = searchOf(this.field.value);
    setText(byId("all-trouble"), found.error || (found.kind === "expression" ? "Enter draws it." : ""));
    this.field.setAttribute("aria-invalid", String(Boolean(found.error)));
    // A pattern that is not finished yet changes nothing: what it found last stays.
    if (found.error) return;
    this.search = found;
    if (!this.open) this.setOpen(true);
    this.layout.find = found.kind === "expression" ? "" : this.field.value.trim().slice(0, 200);
    this.list();
    this.changed();
  }

  /** Bring sections up to date: the run's names, the search or the layout are others. */
  list() {
    this.takeKept();
    const { page, layout, search } = this;
    const { nameSet } = page;
    const pins = layout.pins.filter((name) => name.startsWith(EXPRESSION) || name.endsWith("*") || nameSet.has(name));
    const pinned = new Set(pins);
    const searching = this.searching();
    const fitting = searching ? page.names.filter(search.fits) : page.names;
    const groups = sectionsOf(fitting.filter((name) => !pinned.has(name)));
    const shownPins = searching ? pins.filter(search.fits) : pins;
    const wanted = new Map(
      /** @type {[string, string[]][]} */ (shownPins.length ? [[PINNED, shownPins]] : []).concat(groups),
    );
    setText(
      byId("all-note"),
      `${plural(page.names.length, "metric")}${searching ? `, ${formatCount(fitting.length)} fit` : ""}`,
    );
    setShown(byId("all-panel"), page.names.length > 0 || layout.pins.length > 0);
    if (!this.open) return this.foldAll();
    const place = byId("all-metrics");
    for (const [key, section] of this.sections)
      if (!wanted.has(key)) {
        section.close();
        this.sections.delete(key);
      }
    let room = OPEN_AT_FIRST;
    let before = /** @type {Element | null} */ (null);
    for (const [prefix, names] of wanted) {
      let section = this.sections.get(prefix);
      if (!section) {
        section = new MetricSection(this, prefix, titleOf(prefix, wanted), prefix);
        this.sections.set(prefix, section);
      }
      const next = before ? before.nextSibling : place.firstChild;
      if (section.element !== next) place.insertBefore(section.element, next);
      before = section.element;
      const usual = prefix === PINNED || (prefix !== "gpu/" && names.length <= room && !this.charted(names));
      const open = searching ? true : (layout.open[prefix] ?? usual);
      if (open && prefix !== PINNED) room -= names.length;
      section.list(prefix === PINNED ? names : inOrder(names, layout.order[prefix]), open);
    }
    setShown(byId("all-none"), wanted.size === 0);
    setText(byId("all-none"), page.names.length ? "No metric fits." : "No metric yet.");
    const missing = page.names.length ? missingOf(layout, nameSet) : [];
    setText(byId("all-missing"), missing.length ? missingWords(missing) : "");
    setShown(byId("all-missing"), missing.length > 0);
    return undefined;
  }

  /** Whether all of these have a chart above: they need none here at once. */
  charted(names) {
    const above = this.page.headline.charted();
    return names.every((name) => above.has(name));
  }

  foldAll() {
    for (const section of this.sections.values()) section.list(section.names, false);
  }

  /** What this browser kept for the project, as soon as the project is known; an address goes before it. */
  takeKept() {
    const { run } = this.page;
    if (!run || this.taken) return;
    this.taken = true;
    const kept = keptLayout(run.project || "");
    if (this.given) {
      // An order is in no address: this browser's own holds for what the address shows.
      this.layout = { ...this.layout, order: kept ? kept.order : {} };
      return;
    }
    if (kept) this.take({ ...kept, find: "" }, true);
  }

  searching() {
    return this.search.kind === "words" || this.search.kind === "regex";
  }

  /** Lay everything out as this says. */
  take(layout, quiet = false) {
    this.layout = layout;
    this.search = searchOf(layout.find);
    this.field.value = layout.find;
    for (const section of this.sections.values()) section.close();
    this.sections.clear();
    this.page.headline.applyOptions(layout);
    if (quiet) return;
    this.list();
    this.changed();
  }

  // -- what people do ------------------------------------------------------------------------------------------

  fold(section) {
    const open = section.head.getAttribute("aria-expanded") !== "true";
    if (this.searching()) return section.list(section.names, open); // what a search found, for now
    this.layout.open[section.prefix] = open;
    section.list(section.names, open);
    this.list();
    this.changed();
    return undefined;
  }

  pin(name, on) {
    const { layout } = this;
    if (on && layout.pins.length >= PINS)
      return toast(`${PINS} charts are pinned already; unpin one first.`, "warning");
    layout.pins = on ? [...new Set([...layout.pins, name])] : layout.pins.filter((one) => one !== name);
    const held = document.activeElement instanceof HTMLElement && document.activeElement.dataset.pin === name;
    this.list();
    if (held) /** @type {any} */ (byId("all-metrics")?.querySelector(`[data-pin="${CSS.escape(name)}"]`))?.focus();
    this.changed();
    return undefined;
  }

  resize(name) {
    const size = nextSize(this.layout.sizes[name]);
    if (size === "M") delete this.layout.sizes[name];
    else this.layout.sizes[name] = size;
    for (const section of this.sections.values()) section.renew(name);
    /** @type {any} */ (byId("all-metrics")?.querySelector(`[data-size="${CSS.escape(name)}"]`))?.focus();
    this.changed();
  }

  /** By so many places, or to the place of another. */
  move(prefix, name, to) {
    const section = this.sections.get(prefix);
    const names = movedTo(section.names, name, to);
    if (names === section.names) return;
    if (prefix === PINNED) this.layout.pins = [...names, ...this.layout.pins.filter((one) => !names.includes(one))];
    else this.layout.order[prefix] = names.slice(0, 2000);
    this.list();
    section.tile(name)?.grip.focus();
    section.tile(name)?.element.scrollIntoView({ block: "nearest" });
    this.changed();
  }

  setOptions(name, options) {
    if (Object.keys(options).length) this.layout.options[name] = options;
    else delete this.layout.options[name];
    this.fetchOpen();
    this.changed();
  }

  /** The chart of a name takes what was chosen for it in full screen. */
  applyOptions(name) {
    for (const section of this.sections.values()) section.tile(name)?.chart.setOptions(this.layout.options[name] || {});
  }

  async addExpression(text) {
    const name = EXPRESSION + text;
    const trouble = byId("all-trouble");
    try {
      await api.series(this.page.id, [name], { points: 4, rank: "primary" });
    } catch (error) {
      setText(trouble, `${errorText(error)}`);
      this.field.setAttribute("aria-invalid", "true");
      return;
    }
    if (this.page.gone) return;
    setText(trouble, "");
    this.field.value = "";
    this.search = searchOf("");
    this.pin(name, true);
  }

  dragged(event, tile) {
    this.dragging = tile;
    event.dataTransfer.effectAllowed = "move";
    event.dataTransfer.setData("text/plain", tile.name);
    event.dataTransfer.setDragImage(tile.element, 20, 20);
  }

  over(event, tile) {
    if (!this.dragging || this.dragging.section !== tile.section) return;
    event.preventDefault();
    this.target?.element.classList.remove("target");
    this.target = tile;
    tile.element.classList.toggle("target", tile !== this.dragging);
  }

  dropped(event, tile) {
    if (!this.dragging) return;
    event.preventDefault();
    const { section, name } = this.dragging;
    this.dragEnded();
    if (section === tile.section && name !== tile.name) this.move(section, name, tile.name);
  }

  dragEnded() {
    this.target?.element.classList.remove("target");
    this.target = this.dragging = null;
  }

  // -- what is shown and kept ------------------------------------------------------------------------------------

  /** Tiles that exist now. */
  tiles() {
    return [...this.sections.values()].flatMap((section) => section.chunks.flatMap(({ tiles }) => tiles || []));
  }

  /** Expressions that are drawn now: the server makes what is new of them. */
  expressions() {
    return [...new Set(this.tiles().flatMap((tile) => tile.metrics()))].filter((name) => name.startsWith(EXPRESSION));
  }

  fetchOpen() {
    this.page.feed.fetchWanted([...new Set(this.tiles().flatMap((tile) => tile.metrics()))]);
  }

  /** Steps that the pinned charts reach: the shared range has to hold them. */
  names() {
    return this.layout.pins;
  }

  address() {
    return addressOf(this.layout);
  }

  changed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      if (this.page.gone) return;
      this.page.look.remember();
      if (this.page.run) keepLayout(this.page.run.project || "", { ...this.layout, find: "" });
    }, KEEP_MS);
  }

  columns() {
    const style = getComputedStyle(byId("all-metrics")).getPropertyValue("--columns");
    return Number(style) || 2;
  }

  watch(element, chunk, section) {
    this.chunks.set(element, [section, chunk]);
    this.seen.observe(element);
  }

  unwatch(element) {
    this.chunks.delete(element);
    this.seen.unobserve(element);
  }

  close() {
    clearTimeout(this.timer);
    this.seen.disconnect();
    this.dialog?.close();
    this.menu.close();
  }
}

const titleOf = (prefix, sections) =>
  prefix === PINNED ? "Pinned" : prefix !== OTHER ? prefix : sections.size > 1 ? "Other metrics" : "Metrics";

function missingWords(missing) {
  const shown = missing.slice(0, 3).join(", ");
  const more = missing.length > 3 ? ` and ${missing.length - 3} more` : "";
  return `This run has no ${shown}${more}: ${missing.length === 1 ? "its chart comes" : "their charts come"} when it is logged.`;
}
