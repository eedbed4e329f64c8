// Equal incidents of one run as one row: the list of all runs shows what there is, not how often it was said.

/**
 * Groups of a list, in its order: of one run, one kind, one severity, and open or not. `first` stands for the group, the
 * others are `more`.
 */
export function grouped(incidents) {
  const groups = new Map();
  for (const one of incidents) {
    const open = one.state === "open";
    const key = `${one.run_id} ${one.kind} ${open ? one.severity : "over"}`;
    const known = groups.get(key);
    if (known) known.more.push(one);
    else groups.set(key, { key, first: one, more: [] });
  }
  return [...groups.values()];
}

/** Filters of the page from its address, and back: `state` is open where it is left out. */
export const FILTERS = ["state", "severity", "kind", "project", "run", "ack"];

export function filtersOf(search) {
  const query = new URLSearchParams(search);
  const found = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) || ""]));
  found.state = query.has("state") ? found.state.replace("all", "") : "open";
  return found;
}

/** What the server is asked for. */
export function askedFor(filters) {
  const { state, severity, kind, project, run, ack } = filters;
  return {
    ...(state === "open" ? { state: "open" } : state === "over" ? { state: ["recovered", "resolved"] } : {}),
    ...(severity ? { severity: severity === "warning" ? ["critical", "warning"] : severity } : {}),
    ...(kind ? { kind } : {}),
    ...(project ? { project } : {}),
    ...(run ? { run } : {}),
    ...(ack ? { acknowledged: ack === "yes" } : {}),
  };
}

/** Whether an incident has all words that were typed. */
export function hasWords(incident, typed) {
  const text = [incident.title, incident.label, incident.run_name, incident.run_id, incident.project, incident.node]
    .join(" ")
    .toLowerCase();
  return typed
    .toLowerCase()
    .split(/\s+/)
    .filter(Boolean)
    .every((word) => text.includes(word));
}
