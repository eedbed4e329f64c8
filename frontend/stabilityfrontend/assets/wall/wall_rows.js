// What a wall asks of the table of all runs: the sick, those that broke down today, and the newest that are well. The
// server counts; of five thousand runs a wall reads the few that have a place on it.

import { heaps } from "./wall_state.js";

const query = (q, sort) => ({ q, sort, group: "", columns: [] });

/** The three questions, as `api.runTable` takes them. `broke`: as `heaps`, an older crash is history. */
export const QUESTIONS = {
  sick: query("state:sick", []),
  broke: query("state:crashed updated<1d", []),
  well: query("state:well", ["age"]),
};

/** A row of the table as a run; what is known of the run beyond the row stays. */
export function asRun(row, known = /** @type {any} */ (null)) {
  const metric = row.loss_metric || row.curve?.metric || null;
  const latest = { ...known?.latest };
  if (row.loss_metric && row.loss !== null) latest[row.loss_metric] = row.loss;
  return {
    metrics: metric ? [metric] : [],
    ...known,
    run_id: row.run_id,
    name: row.name,
    status: row.status,
    state: row.state,
    note: row.note,
    last_step: row.step,
    loss_metric: row.loss_metric,
    worst_incident: row.worst_incident,
    world_size: row.ranks,
    created: row.created,
    updated: row.updated,
    latest,
  };
}

/** The runs of the three answers by id; `known`: those of before. */
export function runsOf(answers, known) {
  const rows = answers.flatMap((answer) => answer.rows).filter((row) => !row.gone);
  return new Map(rows.map((row) => [row.run_id, asRun(row, known.get(row.run_id))]));
}

/** How many have no row here, as the server counted: `{sick, crashed, well, past}`. */
export function beyond([sick, broke, well]) {
  const left = (answer) => Math.max(0, answer.fit - answer.rows.length);
  return {
    sick: left(sick),
    crashed: left(broke),
    well: left(well),
    past: Math.max(0, sick.total - sick.fit - broke.fit - well.fit),
  };
}

/** The heaps, and how many each has with those that have no row: `counts`. */
export function counted(runs, now, more, own = "") {
  const found = heaps(
    [...runs].filter((run) => run.run_id !== own || !run.alone),
    now,
  );
  const counts = Object.entries(found.counts).map(([heap, count]) => [heap, count + more[heap]]);
  return { ...found, counts: Object.fromEntries(counts) };
}
