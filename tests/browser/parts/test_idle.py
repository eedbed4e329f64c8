"""What an open page does not do: ask for frames while it waits, make again what is as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: A chart that rests 300 ms between two drawings gets news every 5 ms for 1.2 s: its drawings, and frames asked for.
RESTING = """async () => {
  const element = document.createElement("div");
  element.style.cssText = "width: 300px; height: 200px";
  document.body.append(element);
  const board = new stability.Board({ limits: { frame_budget_ms: 10, drawn_records: 10 } }, { range: null });
  let drawings = 0;
  const chart = { id: "one", element, interval: 300, metrics: () => ["loss"], paint: () => (drawings += 1) };
  board.add(chart);
  chart.visible = true;
  const ask = window.requestAnimationFrame;
  let frames = 0;
  window.requestAnimationFrame = (act) => { frames += 1; return ask(act); };
  const until = performance.now() + 1200;
  while (performance.now() < until) {
    board.markMetrics(new Set(["loss"]), 1, 1);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  window.requestAnimationFrame = ask;
  board.close();
  return [drawings, frames];
}"""

#: What a wall makes of its cells when nothing, one reading, or the field that is shown is another.
KEPT = """() => {
  const health = new stability.Health();
  const ranks = [0, 1].map((rank) => ({ rank, gpu: { index: rank, uuid: "" } }));
  health.fill({ waits_for: [], agents: [1, 2].map((node) => ({ agent: `a${node}`, node: `n${node}`, time: 1000, connected: true, ranks, gpu: {}, agent_state: {}, gpus: { 0: { util_pct: 50 }, 1: { util_pct: 60 } } })) });
  const gpus = Object.assign(Object.create(stability.GpuMap.prototype), { page: { health, now: () => 1000 }, field: "util", known: new Map(), indices: new Map(), answers: 0, made: new Map() });
  const colors = { load: ["#111111", "#222222"], ramp: ["#333333", "#444444"], "rank-unheard": "#555555" };
  const first = gpus.groups(colors).groups;
  const told = [];
  const tell = () => told.push(gpus.groups(colors).groups.map((group, index) => group === first[index]));
  tell();
  health.points({ node: "n2", rank: null, values: {}, gpus: { fields: ["util_pct"], index: [0], values: [[10]] } });
  tell();
  gpus.field = "temp";
  tell();
  return told;
}"""  # noqa: E501  one script, read as one


def test_while_a_chart_rests_no_frame_is_asked_for(scripts: Page) -> None:
    drawings, frames = scripts.evaluate(RESTING)

    # Per drawing: its own, the two that note it, one that finds it resting, and one or two before it is due.
    assert 2 <= drawings <= 5
    assert frames <= 7 * drawings + 3


def test_a_nodes_gpus_are_made_anew_only_where_something_of_it_changed(scripts: Page) -> None:
    told: Any = scripts.evaluate(KEPT)

    assert told == [[True, True], [True, False], [False, False]]
