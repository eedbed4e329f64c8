// Where the board is on its host: a proxy may serve it below a path, and the server need not know which. The one place
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
