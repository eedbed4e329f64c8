// Which page an address is: the skeletons came with the frame, so that going to a page asks the server for nothing.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  const RUN = /^\/runs\/([^/]+)$/;

  function decoded(part) {
    try {
      return decodeURIComponent(part);
    } catch (error) {
      return part;
    }
  }

  /** The skeleton of an address; a run's page has the run's id, as text, in `data-run`. */
  S.route = function (pathname, skeletons) {
    const path = (pathname || "/").replace(/\/+$/, "");
    if (path === "" || path === "/runs") return skeletons.runs;
    if (path === "/login") return skeletons.login;
    if (path === "/compare") return skeletons.compare;
    const run = RUN.exec(path);
    if (!run) return skeletons.missing;
    return { ...skeletons.run, props: { ...skeletons.run.props, "data-run": decoded(run[1]) } };
  };
})();
