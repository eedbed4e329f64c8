// Which page an address is: the skeletons came with the frame, so that going to a page asks the server for nothing.

const RUN = /^\/runs\/([^/]+)$/;
const INCIDENT = /^\/runs\/([^/]+)\/incidents\/([^/]+)$/;

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of an incident's page. */
export const incidentHref = (run, incident) =>
  `/runs/${encodeURIComponent(run)}/incidents/${encodeURIComponent(incident)}`;

/** The skeleton of an address; a run's page has the run's id, as text, in `data-run`, an incident's also its own in `data-incident`. */
export function route(pathname, skeletons) {
  const path = (pathname || "/").replace(/\/+$/, "");
  if (path === "" || path === "/runs") return skeletons.runs;
  if (path === "/login") return skeletons.login;
  if (path === "/compare") return skeletons.compare;
  if (path === "/fleet") return skeletons.fleet;
  const incident = INCIDENT.exec(path);
  if (incident)
    return {
      ...skeletons.incident,
      props: { ...skeletons.incident.props, "data-run": decoded(incident[1]), "data-incident": decoded(incident[2]) },
    };
  const run = RUN.exec(path);
  if (!run) return skeletons.missing;
  return { ...skeletons.run, props: { ...skeletons.run.props, "data-run": decoded(run[1]) } };
}

/** Go to another page of ours without loading everything again: Dash listens to the history. */
export function go(href) {
  history.pushState({}, "", href);
  window.dispatchEvent(new PopStateEvent("popstate"));
  window.scrollTo(0, 0);
}
