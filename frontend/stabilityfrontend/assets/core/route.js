// Which page an address is: the table of pages came with the frame, so that going to one asks the server for nothing.

// -- Where the board is on its host: a proxy may serve it below a path, and the server need not know which. The one place
// that makes an address of ours; all other modules speak of paths within the board, `/runs/a`.

/** @type {HTMLLinkElement | null | undefined} */
const modules = globalThis.document?.querySelector?.("link[rel=modulepreload]");

/** The path that all our addresses begin with, a slash at both ends: `/`, `/user/x/proxy/8080/`. */
const root = modules ? new URL("..", modules.href).pathname : "/";

/** The address of a path within the board; anything else (`?a=b`, `#id`, `https://...`) is one already. */
export const address = (path) => (/^\//.test(path) ? root + path.replace(/^\/+/, "") : path);

/** The path within the board that an address of ours has. */
export function place(pathname = location.pathname) {
  if (`${pathname}/` === root) return "/";
  return pathname.startsWith(root) ? `/${pathname.slice(root.length)}` : pathname;
}

/** The board's own address, as `STABILITY_URL` has it: no slash at its end. */
export const boardUrl = () => location.origin + root.slice(0, -1);

/** The name by which this browser keeps what is of this board alone: others may be on the same host, below other paths. */
export const keptName = (name) => (root === "/" ? name : `${name} ${root}`);

/** Components of Dash whose links lead to addresses: whoever made them in the server named paths within the board. */
export function addressed(node) {
  if (Array.isArray(node)) return node.map(addressed);
  if (!node || typeof node !== "object" || !node.props) return node;
  const props = { ...node.props, children: addressed(node.props.children) };
  for (const name of ["href", "src"]) if (typeof props[name] === "string") props[name] = address(props[name]);
  return { ...node, props };
}

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
 * element, as text: `data-run`, `data-incident`.
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
