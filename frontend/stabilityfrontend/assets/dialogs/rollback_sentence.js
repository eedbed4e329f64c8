// What a rollback will do, in words, before it is sent.

import { duration, formatCount, plural } from "../core/format.js";

const everyRank = (size) =>
  size === 1
    ? ["The rank stops", "loads", "discards", "reseeds", "skips", "goes"]
    : [
        size === 2 ? "Both ranks stop" : `All ${formatCount(size)} ranks stop`,
        "load",
        "discard",
        "reseed",
        "skip",
        "go",
      ];

/**
 * What an order will do, in one or two sentences. `order` as posted; `facts`: size, lastStep, stepSeconds, none: why no
 * checkpoint is chosen, aliveUntil: the last effective step of the branch that is gone back to.
 */
export function rollbackSentence(order, facts) {
  if (order.to_step === null)
    return (
      facts.none ||
      "Without a checkpoint there is nothing to go back to. The job announces each with run.checkpoint(step, path)."
    );
  const [stop, load, discard, reseed, skip, go] = everyRank(facts.size);
  const returns = order.branch !== undefined;
  const first = returns ? facts.aliveUntil : order.to_step;
  const gone = Math.max(0, facts.lastStep - first);
  const cost = gone && facts.stepSeconds ? `, about ${duration(gone * facts.stepSeconds)} of work` : "";
  const parts = [`${load} checkpoint ${formatCount(order.to_step)}${returns ? " of the branch that was left" : ""}`];
  const which =
    gone === 1
      ? `step ${formatCount(facts.lastStep)}`
      : `steps ${formatCount(first + 1)}–${formatCount(facts.lastStep)}`;
  if (gone) parts.push(`${discard} ${which} and those trained until then (${plural(gone, "step")} so far${cost})`);
  if (order.seed !== null) parts.push(`${reseed} with ${order.seed}`);
  if (order.skip_batches)
    parts.push(`${skip} ${order.skip_batches === 1 ? "1 batch" : `${formatCount(order.skip_batches)} batches`}`);
  if (order.skip_range) {
    const [from, to] = order.skip_range;
    const steps = from === to ? `step ${formatCount(from)}` : `steps ${formatCount(from)}–${formatCount(to)}`;
    parts.push(`${skip} the batches of ${steps}`);
  }
  if (order.lr_scale !== null && order.lr_scale !== 1)
    parts.push(`${go} on with the LR of its schedule × ${order.lr_scale}`);
  const joined = parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts[parts.length - 1]}` : parts[0];
  const again = returns
    ? ` Steps ${formatCount(first + 1)}–${formatCount(order.to_step)} of that branch count again, and training goes on with step ${formatCount(order.to_step + 1)}.`
    : "";
  return `${stop} at the next common step boundary, ${joined}.${again} Discarded points stay visible, dashed.`;
}
