// The points of one run in the browser, by metric and by (segment, rank, node). Lineage is looked up when reading, so
// a rollback moves no point: it changes which of them are on the effective line.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});

  class SeriesStore {
    /** `limits`: entry_points (points kept of each entry), live_metrics (metrics kept at all). */
    constructor(limits) {
      this.limits = limits;
      this.metrics = new Map();
      this.details = new Map();
      this.segments = new Map();
      this.head = null;
      this.latest = new Map();
      this.lastStep = null;
      this.lastTime = null;
      this.uses = 0;
    }

    /** Forget every point, keep the wishes: used after a `reset`. */
    clear() {
      for (const metric of this.metrics.values()) metric.entries.clear();
      this.details.clear();
      this.latest.clear();
    }

    setSegments(head, segments) {
      this.head = head;
      this.segments = new Map(segments.map((segment) => [segment.id, segment]));
    }

    /** The greatest step of a segment that counts: -Infinity when none of them do. */
    aliveUpTo(id) {
      const segment = this.segments.get(id);
      if (!segment) return Infinity; // points may come before their segment does; it is the newest then
      if (segment.on_head_path === false) return -Infinity;
      return segment.dead_after === null || segment.dead_after === undefined ? Infinity : segment.dead_after;
    }

    /** Keep points of a metric from now on. Returns whether its history has to be fetched, once. */
    want(name) {
      this.uses += 1;
      const known = this.metrics.get(name);
      if (known) known.used = this.uses;
      else {
        this.metrics.set(name, { entries: new Map(), used: this.uses, asked: false, pinned: false });
        this.evict();
      }
      const metric = this.metrics.get(name);
      const first = !metric.asked;
      metric.asked = true;
      return first;
    }

    /** The history of these did not come: ask again when they are wanted again. */
    unask(names) {
      for (const name of names) if (this.metrics.has(name)) this.metrics.get(name).asked = false;
    }

    /** Never evict these: the charts that are always there. */
    pin(names) {
      for (const name of names) {
        if (!this.metrics.has(name)) {
          this.metrics.set(name, { entries: new Map(), used: 0, asked: false, pinned: false });
        }
        this.metrics.get(name).pinned = true;
      }
    }

    evict() {
      if (this.metrics.size <= this.limits.live_metrics) return;
      const loose = [...this.metrics].filter(([, metric]) => !metric.pinned).sort((a, b) => a[1].used - b[1].used);
      for (const [name] of loose.slice(0, this.metrics.size - this.limits.live_metrics)) this.metrics.delete(name);
    }

    /** Merge what /series answered for `names`; a metric that is not in the answer has no points yet. */
    fill(names, series, points) {
      for (const name of names) if (this.metrics.has(name)) this.metrics.get(name).asked = true;
      for (const group of grouped(series)) {
        const [one] = group;
        const metric = this.metrics.get(one.metric);
        if (!metric) continue;
        const entry = this.entry(metric.entries, one.segment, one.rank, one.node, group.stray);
        const { steps, values } = joined(group);
        // What came live meanwhile is newer than the answer and stays.
        const later = steps.length ? S.lowerBound(entry.steps, steps[steps.length - 1] + 1) : 0;
        entry.steps = steps.concat(entry.steps.slice(later));
        entry.values = values.concat(entry.values.slice(later));
        const span = steps.length ? steps[steps.length - 1] - steps[0] + 1 : 0;
        if (points && steps.length >= 0.3 * points && span > steps.length) entry.thinned = true;
        this.bound(entry);
      }
      for (const name of names) this.findLatest(name);
    }

    /** Points of a window in full detail, shown while the zoom lies inside it. */
    setDetail(name, start, stop, series) {
      const entries = new Map();
      for (const group of grouped(series)) {
        const entry = this.entry(entries, group[0].segment, group[0].rank, group[0].node, group.stray);
        Object.assign(entry, joined(group));
      }
      this.details.set(name, { start, stop, entries });
    }

    isThinned(name) {
      const metric = this.metrics.get(name);
      return Boolean(metric) && [...metric.entries.values()].some((entry) => entry.thinned);
    }

    entry(entries, segment, rank, node, stray) {
      const key = `${stray ? "stray|" : ""}${segment}|${rank === null || rank === undefined ? "" : rank}|${rank === null || rank === undefined ? node || "" : ""}`;
      let entry = entries.get(key);
      if (!entry) {
        entry = { segment, rank: rank === undefined ? null : rank, node: node || "", stray: Boolean(stray), steps: [], values: [], thinned: false };
        entries.set(key, entry);
      }
      return entry;
    }

    bound(entry) {
      if (entry.steps.length <= this.limits.entry_points) return;
      S.thinLists(entry.steps, entry.values, Math.floor(this.limits.entry_points / 2));
      entry.thinned = true;
    }

    /** Add a block of live points. Returns the names of the metrics that it touched. */
    append(block) {
      const touched = [];
      const alive = this.aliveUpTo(block.segment);
      const last = block.steps.length - 1;
      for (const [name, column] of Object.entries(block.values)) {
        touched.push(name);
        const metric = this.metrics.get(name);
        const entry = metric && this.entry(metric.entries, block.segment, block.rank, block.node);
        const detail = this.details.get(name);
        for (let index = 0; index <= last; index += 1) {
          const value = S.number(column[index]);
          if (value === null) continue; // missing: not logged at this step
          const step = block.steps[index];
          if (entry) put(entry, step, value);
          if (detail && step >= detail.start && step <= detail.stop) {
            const close = this.entry(detail.entries, block.segment, block.rank, block.node);
            put(close, step, value);
            this.bound(close);
          }
          if (step <= alive) this.setLatest(name, block, step, value, block.times[index]);
        }
        if (entry) this.bound(entry);
      }
      for (let index = 0; index <= last; index += 1) {
        const step = block.steps[index];
        if (step <= alive && (this.lastStep === null || step > this.lastStep)) this.lastStep = step;
        if (this.lastTime === null || block.times[index] > this.lastTime) this.lastTime = block.times[index];
      }
      return touched;
    }

    setLatest(name, block, step, value, time) {
      const known = this.latest.get(name);
      const where = block.rank === null || block.rank === undefined ? block.node : block.rank;
      if (!known) this.latest.set(name, { value, step, time, segment: block.segment, by: new Map([[where, { value, step, time }]]) });
      else {
        // The lowest rank speaks for the metric; the others stand in `by`. 4,096 ranks at most.
        if (known.by.size < 4096 || known.by.has(where)) known.by.set(where, { value, step, time });
        const lowest = this.lowestRank(name);
        if (lowest === null || block.rank === lowest) Object.assign(known, { value, step, time, segment: block.segment });
      }
    }

    lowestRank(name) {
      const metric = this.metrics.get(name);
      if (!metric) return null;
      let lowest = null;
      for (const entry of metric.entries.values()) if (entry.rank !== null && (lowest === null || entry.rank < lowest)) lowest = entry.rank;
      return lowest;
    }

    /** The newest effective point of each line, after a fetch or a change of the lineage. */
    findLatest(name) {
      const lines = this.effective(name);
      const by = new Map();
      let first = null;
      for (const line of lines) {
        const piece = line.pieces[line.pieces.length - 1];
        const point = { value: piece.values[piece.to - 1], step: piece.steps[piece.to - 1], time: null };
        by.set(line.rank === null ? line.node : line.rank, point);
        if (!first) first = { ...point, segment: piece.segment, by };
        if (line.rank !== null || this.lastStep === null) this.lastStep = Math.max(this.lastStep === null ? -Infinity : this.lastStep, point.step);
      }
      if (first) this.latest.set(name, first);
    }

    /** After a change of the lineage: dead points may have been the newest ones. */
    relook() {
      this.lastStep = null;
      for (const name of this.metrics.keys()) this.findLatest(name);
    }

    source(name, window) {
      const metric = this.metrics.get(name);
      const detail = this.details.get(name);
      if (detail && window && window[0] >= detail.start && window[1] <= detail.stop) return detail.entries;
      return metric ? metric.entries : new Map();
    }

    /**
     * The effective lines of a metric, one per rank (or node), lowest rank first:
     * `{rank, node, pieces: [{segment, steps, values, from, to}]}` with pieces in step order and no step twice.
     */
    effective(name, window) {
      const lines = new Map();
      for (const entry of this.source(name, window).values()) {
        const to = entry.stray ? 0 : S.lowerBound(entry.steps, this.aliveUpTo(entry.segment) + 1);
        if (to <= 0) continue;
        const key = entry.rank === null ? `n${entry.node}` : entry.rank;
        if (!lines.has(key)) lines.set(key, { rank: entry.rank, node: entry.node, pieces: [] });
        lines.get(key).pieces.push({ segment: entry.segment, steps: entry.steps, values: entry.values, from: 0, to });
      }
      for (const line of lines.values()) {
        line.pieces.sort((a, b) => a.segment - b.segment);
        // Points of a new segment may come before the news that it forked: what it repeats gives way to it.
        for (let index = line.pieces.length - 2; index >= 0; index -= 1) {
          const piece = line.pieces[index];
          const next = line.pieces[index + 1];
          piece.to = Math.min(piece.to, S.lowerBound(piece.steps, next.steps[next.from]));
          if (piece.to <= piece.from) line.pieces.splice(index, 1);
        }
      }
      return [...lines.values()].sort((a, b) => (a.rank === null ? 1e9 : a.rank) - (b.rank === null ? 1e9 : b.rank));
    }

    /** The dead stretches of a metric: `{segment, rank, node, steps, values, from, to}`. */
    dead(name, window) {
      const stretches = [];
      for (const entry of this.source(name, window).values()) {
        const from = entry.stray ? 0 : S.lowerBound(entry.steps, this.aliveUpTo(entry.segment) + 1);
        if (from < entry.steps.length) stretches.push({ ...entry, from, to: entry.steps.length });
      }
      return stretches.sort((a, b) => a.segment - b.segment || (a.rank || 0) - (b.rank || 0));
    }

    /** The newest `count` values of the lowest rank's effective line, in step order. */
    tail(name, count) {
      const [line] = this.effective(name);
      if (!line) return { steps: [], values: [] };
      const steps = [];
      const values = [];
      for (let index = line.pieces.length - 1; index >= 0 && steps.length < count; index -= 1) {
        const piece = line.pieces[index];
        for (let at = piece.to - 1; at >= piece.from && steps.length < count; at -= 1) {
          steps.push(piece.steps[at]);
          values.push(piece.values[at]);
        }
      }
      return { steps: steps.reverse(), values: values.reverse() };
    }

    /** First and last step that any wanted metric has, dead ones included; null before the first point. */
    extent(names) {
      let low = Infinity;
      let high = -Infinity;
      for (const name of names) {
        const metric = this.metrics.get(name);
        if (!metric) continue;
        for (const entry of metric.entries.values()) {
          if (!entry.steps.length) continue;
          low = Math.min(low, entry.steps[0]);
          high = Math.max(high, entry.steps[entry.steps.length - 1]);
        }
      }
      return low <= high ? [low, high] : null;
    }
  }

  /**
   * Answers of /series by metric, segment and rank: a segment's dead points come as an entry of their own. Dead ones
   * among the steps of another entry are strays, low steps that nothing followed: a group of their own, never a line.
   */
  function grouped(series) {
    const groups = new Map();
    for (const one of series) {
      const key = JSON.stringify([one.metric, one.segment, one.rank, one.node]);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(one);
    }
    const found = [];
    for (const group of groups.values()) {
      const strays = group.filter((one) => one.dead && group.some((other) => other !== one && covers(other, one)));
      found.push(group.filter((one) => !strays.includes(one)));
      if (strays.length) found.push(Object.assign(strays.slice(0, 1), { stray: true }));
    }
    return found.filter((group) => group.length);
  }

  /** Whether `other` is the line beside whose steps the dead entry `one` stands. */
  function covers(other, one) {
    if (!other.steps.length || !one.steps.length || other.steps[other.steps.length - 1] < one.steps[0]) return false;
    return !other.dead || other.steps.length > one.steps.length;
  }

  function joined(group) {
    const parts = group.filter((one) => one.steps.length).sort((a, b) => a.steps[0] - b.steps[0]);
    return { steps: parts.flatMap((one) => one.steps), values: parts.flatMap((one) => one.values.map(S.number)) };
  }

  function put(entry, step, value) {
    const { steps, values } = entry;
    const last = steps.length - 1;
    if (last < 0 || step > steps[last]) {
      steps.push(step);
      values.push(value);
      return;
    }
    const at = S.lowerBound(steps, step);
    if (steps[at] === step) values[at] = value;
    else {
      steps.splice(at, 0, step);
      values.splice(at, 0, value);
    }
  }

  S.SeriesStore = SeriesStore;
})();
