// Which page an address is: the table of pages came with the frame, so that going to one asks the server for nothing.

import { address, addressed, place } from "./place.js";

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

/** The address of a run's attempts over each other; with `fork`, of the two branches of that fork. */
export const attemptsHref = (run, fork = null) =>
  `/runs/${encodeURIComponent(run)}/attempts${fork === null ? "" : `?fork=${fork}`}`;

/**
 * The page of an address: the first of the table whose pattern fits. The ids in the address are attributes of its
 * skeleton, as text: `data-run`, `data-incident`.
 */
export function route(pathname, pages) {
  const path = (pathname || "/").replace(/\/+$/, "") || "/";
  const page = pages.find((one) => new RegExp(one.pattern).test(path));
  const found = /** @type {RegExpExecArray} */ (new RegExp(page.pattern).exec(path));
  const ids = Object.fromEntries(page.ids.map((name, index) => [`data-${name}`, decoded(found[index + 1])]));
  const skeleton = addressed(page.skeleton);
  return { ...page, skeleton: { ...skeleton, props: { ...skeleton.props, ...ids } } };
}

/** This page's address with some parameters changed, `?days=7&project=`; an empty one is taken away. */
export function changed(search) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of new URLSearchParams(search)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  return `${place()}${query.size ? `?${query}` : ""}`;
}

/** Go to another page of ours, a path within the board, without loading everything again: Dash listens to the history. */
export function go(href) {
  const from = location.pathname;
  history.pushState({}, "", address(href));
  window.dispatchEvent(new PopStateEvent("popstate"));
  if (location.pathname !== from) window.scrollTo(0, 0);
}
