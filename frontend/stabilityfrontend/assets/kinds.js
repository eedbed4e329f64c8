// The kinds of incidents: the server's one table (schema/kinds.py, docs/api.md), which stands in the page's head.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  const table = S.kinds || {};

  /** What is known of a kind; of one that is not in the table (of a newer server), what its name says. */
  S.kind = function (name) {
    if (name && Object.hasOwn(table, name)) return table[name];
    const short = S.words(name);
    return { ...table[""], name, short, label: short.charAt(0).toUpperCase() + short.slice(1) };
  };
})();
