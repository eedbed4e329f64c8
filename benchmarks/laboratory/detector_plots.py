"""Draws the pictures of the detectors' pages: recorded laboratory runs with the incidents that ours finds in them.

    python benchmarks/laboratory/detector_plots.py [--traces DIR] [--only NAME...]

Each picture is the plot of ``stabilityboard backtest --plot``, photographed by Chromium with only the curves and the
stretch of steps that its page speaks of, and written to ``docs/images/detectors/<kind>.png``. Nothing is drawn by hand.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detection import RECORDED, REPOSITORY
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from stabilityplugins.backtest.judged import Filter, judge
from stabilityplugins.backtest.page import write_page
from stabilityplugins.backtest.sources import read_files

PICTURES = REPOSITORY / "docs" / "images" / "detectors"
#: Size of a picture, pixels; and its largest size, bytes.
WIDTH, HEIGHT = 900, 320
MAX_BYTES = 40 * 1024
#: Colours kept in a picture that is too large: the file becomes a half, small markers lose some of their colour.
COLOURS = 128

__all__ = ["SHOTS", "Shot", "main"]


@dataclass(frozen=True)
class Shot:
    """One picture.

    Args:
        name: of the file. fault: whose trace. panels: of the plot, the first one is large.
        before, after: steps that are shown around the incident's onset.
        kinds: of the incidents that are shown; empty for all of severity warning and above.
        logarithmic: scale of the first panel.
        beside: fault whose curve of the first panel is drawn in grey, for comparison.
        seed: of the trace.
        ranks: draw the curves of all ranks, read from the log: the plot itself has that of the first one only.
    """

    name: str
    fault: str
    panels: tuple[str, ...]
    before: int = 150
    after: int = 150
    kinds: tuple[str, ...] = ()
    logarithmic: bool = False
    beside: str = ""
    seed: int = 101
    ranks: bool = False


#: One picture for each kind; a spike has three, one for each recovery.
SHOTS = (
    Shot("spike", "wrong_tokenizer", ("loss",), 120, 110, ("spike",)),
    Shot("spike_fast", "garbage_batches", ("loss",), 60, 60, ("spike",)),
    Shot("spike_none", "killed_by_lr", ("loss",), 120, 165, ("spike",)),
    Shot("divergence", "lr_creep", ("loss", "lr"), 160, 180, ("divergence",)),
    Shot("nonfinite", "loss_scale", ("loss", "grad_norm"), 60, 60, ("nonfinite",)),
    Shot("level_shift", "label_noise_dataset", ("loss",), 160, 160, ("level_shift",), seed=102),
    Shot("plateau", "never_learns", ("loss",), 10, 690, ("plateau",), beside="healthy_smooth"),
    Shot("repeat_data", "repeat_data", ("loss",), 200, 320, ("repeat_data",)),
    Shot("resume_artifact", "lost_shard", ("loss",), 110, 110, ("resume_artifact",)),
    Shot("data_mix_drift", "mix_after_resume", ("ratio", "loss"), 160, 250, ("data_mix_drift",)),
    Shot("grad_norm", "grad_spikes", ("grad_norm", "loss"), 120, 120, ("grad_norm",)),
    Shot("throughput", "slow_loader", ("tokens_per_s", "step_time_s"), 120, 240, ("throughput",)),
    Shot("straggler", "slow_rank", ("step_time_s",), 120, 160, ("straggler",), ranks=True),
)

#: Draws the plot anew: only some panels, only some steps, in the size of the picture.
_DRAW = """
([panels, kinds, before, after, logarithm, height, ranks, beside]) => {
  const log = LOGS[0];
  theme = "light";
  if (ranks.length) log.curves = ranks;
  log.curves.push(...beside);
  const within = curve => panels.some(panel => curve.panel === panel || curve.panel.startsWith(panel + "/"));
  log.curves = log.curves.filter(within);
  const place = curve => panels.findIndex(panel => curve.panel.startsWith(panel));
  log.curves.sort((a, b) => place(a) - place(b));
  log.incidents = log.incidents.filter(each => kinds.length ? kinds.includes(each.kind) : each.severity !== "info");
  logarithmic = logarithm;
  const { traces, layout } = figure(log);
  const onset = log.incidents.length ? Math.min(...log.incidents.map(each => each.onset_step)) : before;
  const range = [Math.max(0, onset - before), onset + after];
  const axes = Object.keys(layout).filter(name => name.startsWith("yaxis"));
  layout.height = height;
  layout.xaxis.range = range;
  layout.xaxis.autorange = false;
  layout.margin = { l: 62, r: 12, t: 30, b: 38 };
  layout.font.color = "#17202c";
  layout.paper_bgcolor = layout.plot_bgcolor = "#ffffff";
  layout.legend.font = { size: 11, color: "#17202c" };
  axes.forEach(name => {
    const at = name === "yaxis" ? "y" : "y" + name.slice(5);
    const shown = traces.filter(t => (t.yaxis || "y") === at && t.type === "scattergl");
    const values = shown.flatMap(t => t.y.filter((v, i) => v !== null && t.x[i] >= range[0] && t.x[i] <= range[1]));
    if (!values.length) return;
    const low = Math.min(...values), high = Math.max(...values), room = 0.06 * (high - low || high);
    layout[name].autorange = false;
    layout[name].range = layout[name].type === "log" ? [Math.log10(low) - 0.05, Math.log10(high) + 0.05]
                                                     : [low - room, high + room];
    layout[name].title.font = { size: 11, color: "#17202c" };
  });
  traces.forEach(trace => { if (trace.type === "scattergl") trace.type = "scatter"; });
  document.body.innerHTML = '<div id="picture"></div>';
  document.body.style.background = "#ffffff";
  return Plotly.newPlot("picture", traces, layout, { displayModeBar: false, staticPlot: true })
    .then(() => log.incidents.length);
}
"""


def main() -> None:
    """Parse the command line, draw, and say what has become too large or shows no incident."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, default=RECORDED, help="logs of the laboratory")
    parser.add_argument("--only", nargs="+", help="names of pictures")
    parser.add_argument("--out", type=Path, default=PICTURES)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        binary = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        for shot in SHOTS:
            if arguments.only and shot.name not in arguments.only:
                continue
            found = sorted(arguments.traces.glob(f"{shot.fault}-{shot.seed}.jsonl*"))
            if not found:
                print(f"{shot.name}: there is no trace of {shot.fault} with seed {shot.seed}")
                continue
            shown, size = _draw(page, shot, found[0], Path(scratch), arguments.out / f"{shot.name}.png")
            wrong = "no incident in it; " * (not shown) + "too large" * (size > MAX_BYTES)
            print(f"{shot.name}: {shown} incidents, {size / 1024:.0f} KiB {wrong}")
        browser.close()


def _draw(page: Page, shot: Shot, trace: Path, scratch: Path, target: Path) -> tuple[int, int]:
    """Write one picture; return the incidents in it and its bytes."""
    html = scratch / f"{shot.name}.html"
    write_page(html, [judge(next(iter(read_files([trace]))), {}, Filter(), with_curves=True)], {})
    page.goto(html.as_uri())
    wish = [list(shot.panels), list(shot.kinds), shot.before, shot.after, shot.logarithmic, HEIGHT]
    ranks = _ranks(trace, shot.panels[0]) if shot.ranks else []
    beside = trace.with_name(trace.name.replace(shot.fault, shot.beside))
    grey = [curve | {"dead": True} for curve in _ranks(beside, shot.panels[0])] if shot.beside else []
    shown = page.evaluate(_DRAW, [*wish, ranks, grey])
    raw = page.locator("#picture").screenshot(animations="disabled")
    picture = Image.open(io.BytesIO(raw)).convert("RGB")
    picture.save(target, optimize=True)
    if target.stat().st_size > MAX_BYTES:
        picture.quantize(COLOURS).save(target, optimize=True)
    return int(shown), target.stat().st_size


def _ranks(trace: Path, metric: str) -> list[dict[str, Any]]:
    """Return a curve for each rank: the slowest in colour, the others grey as left branches are."""
    by_rank: dict[int, dict[int, float]] = {}
    with gzip.open(trace, "rt") if trace.suffix == ".gz" else trace.open() as lines:
        for row in map(json.loads, lines):
            by_rank.setdefault(row.get("rank", 0), {})[row["step"]] = row[metric]
    slowest = max(by_rank, key=lambda rank: sum(by_rank[rank].values()))
    names = {rank: f"{metric} of rank {rank}" if rank == slowest else metric for rank in by_rank}
    return [
        {
            "panel": metric,
            "metric": names[rank],
            "dead": rank != slowest,
            "level": 0,
            "steps": list(curve),
            "values": list(curve.values()),
        }
        for rank, curve in sorted(by_rank.items(), key=lambda item: item[0] == slowest)
    ]


if __name__ == "__main__":
    main()
