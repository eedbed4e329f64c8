// What can't be seen on the nodes of a run, and why: one quiet line for each kind, the nodes and what to do behind it.

import { byId, h, patch, setShown } from "../core/dom.js";
import { formatCount, formatValue, plural, sentence } from "../core/format.js";
import { blindSpot } from "../ranks/rank_words.js";

/** Names that are listed before the rest is a number. */
const NAMED = 12;

/** Everything that is not seen: `Map(what, Map(why, {do, where}))`. */
function collect(page) {
  const found = new Map();
  const put = (what, why, todo, where) => {
    if (!found.has(what)) found.set(what, new Map());
    const reasons = found.get(what);
    if (!reasons.has(why)) reasons.set(why, { todo, where: [] });
    reasons.get(why).where.push(where);
  };
  for (const agent of page.health.nodes()) {
    for (const one of agent.blind) put(one.what, one.why || "its agent does not say why", one.do, agent.node);
    if (agent.spool.error)
      put(
        "spool",
        agent.spool.error,
        "free or repair the disk of STABILITY_DIR; training goes on without it",
        agent.node,
      );
    else if (agent.spool.dropped)
      put(
        "spool",
        "the spool was full: records were lost",
        "give STABILITY_DIR more room, or find out why the server is away",
        agent.node,
      );
    if (Math.abs(agent.clockStep) > 1)
      put(
        "clock",
        `the node's clock jumped by ${formatValue(agent.clockStep)} s`,
        "look at its time service; times of this node may be off",
        agent.node,
      );
    if (agent.ranks.some((slot) => slot && slot.status === "unheard"))
      put(
        "agent",
        agent.connected ? "its connection is open and nothing comes" : "its connection is closed",
        "its ranks may well train on: look at the node and at agent.log in its run folder",
        agent.node,
      );
    for (const slot of agent.ranks) {
      if (!slot) continue;
      if (slot.trouble)
        put(
          "slot",
          slot.trouble,
          "install one version of stabilityclient on all nodes; the rank itself is not affected",
          `rank ${slot.rank} on ${agent.node}`,
        );
      if (slot.dropped)
        put(
          "dropped",
          "a rank could not write all that it logged",
          "its disk or its agent was too slow: look at the spool's size and the node's disk",
          `rank ${slot.rank} on ${agent.node} (${formatCount(slot.dropped)})`,
        );
    }
  }
  return found;
}

const names = (where) =>
  where.length > NAMED
    ? `${where.slice(0, NAMED).join(", ")} and ${formatCount(where.length - NAMED)} more`
    : where.join(", ");

/** Bring the lines up to date; what somebody opened stays open. */
export function drawBlind(page) {
  const place = byId("blind");
  if (!place) return;
  const found = collect(page);
  setShown(place, found.size > 0);
  const key = JSON.stringify([...found].map(([what, reasons]) => [what, [...reasons]]));
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  patch(
    place,
    h("span.sub", "Not visible here:"),
    [...found].map(([what, reasons]) => {
      const where = [...reasons.values()].flatMap((one) => one.where);
      const ranks = what === "slot" || what === "dropped";
      const head = `${blindSpot(what)} · ${where.length === 1 ? where[0] : plural(where.length, ranks ? "rank" : "node")}`;
      return h(
        "details",
        { data: { what } },
        h("summary", head),
        [...reasons].map(([why, { todo, where: nodes }]) =>
          h(
            "div.blind-why",
            h("p", `Because ${sentence(why).replace(/^[A-Z](?=[a-z]+[\s,.])/, (letter) => letter.toLowerCase())}`),
            todo ? h("p", h("b", "To do: "), sentence(todo)) : null,
            h("p.sub", names(nodes)),
          ),
        ),
      );
    }),
  );
}
