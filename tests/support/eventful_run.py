"""One training run with everything that detectors report, as rows: for tests that send the same rows on many ways."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from stabilitybackend.schema.incidents import Incident, as_json
from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo

__all__ = ["Row", "as_frames", "eventful_rows", "facts", "story_frames", "write_lines"]

#: What a row is: its step, its time, its values. A row without values is a declared rollback to its step.
Row = tuple[int, float, dict[str, float]]
#: What an incident is compared by: all that detectors, evidence and attribution say, and when.
COMPARED = (
    "kind", "severity", "state", "onset_step", "step", "peak_step", "recovered_step", "recovery", "score", "segment",
    "dead", "metric", "dataset", "rank", "title", "text", "evidence", "opened", "resolved", "version",
)  # fmt: skip
STEPS = 900
ROLLED_BACK_FROM, ROLLED_BACK_TO = 620, 560


def eventful_rows(*, declared: bool, seed: int = 5) -> list[Row]:
    """Return the rows of a run: a spike of one data set, NaN, a spike that is rolled back, another spike.

    Args:
        declared: whether the job says that it goes back; else its steps just do.
    """
    rng = random.Random(seed)
    rows: list[Row] = []
    time = 1_700_000_000.0
    again = False
    for step in [*range(1, ROLLED_BACK_FROM + 1), *range(ROLLED_BACK_TO + 1, STEPS + 1)]:
        back = bool(rows) and step <= rows[-1][0]
        time += 30.0 if back else 0.5 + rng.random() / 100
        if back and declared:
            rows.append((ROLLED_BACK_TO, time, {}))
            time += 1.0
        rows.append((step, time, _values(step, rng, again)))
        again |= step == ROLLED_BACK_FROM
    return rows


def _values(step: int, rng: random.Random, again: bool) -> dict[str, float]:
    text = 2.0 + 3.0 * math.exp(-step / 60) + rng.gauss(0, 0.02)
    image = 1.5 + 2.0 * math.exp(-step / 60) + rng.gauss(0, 0.02)
    grad_norm = 1.0 + 0.05 * rng.random()
    if 255 <= step < 275:  # across a border of frames of 16, 32, 64, 128 and 256 rows
        image += 4.0 * math.exp(-(step - 255) / 6)
        grad_norm *= 6.0
    if step >= 600 and not again:
        text, image, grad_norm = text + 5.0, image + 4.0, 20.0
    if 760 <= step < 764:
        text, image = text + 2.5, image + 2.5
    loss = (text + image) / 2
    if step in (401, 402):
        loss, grad_norm = math.nan, math.inf
    values = {"loss": loss, "grad_norm": grad_norm, "lr": 3e-4, "loss/text": text, "loss/image": image}
    if step % 50 == 0:
        values["val_loss"] = loss + 0.1
    return values


def as_frames(rows: Sequence[Row], cuts: Sequence[int] = ()) -> list[Frame]:
    """Return rows as an agent sends them, a new frame before each row number of ``cuts``."""
    info = SourceInfo("r0-1", rank=0, world_size=1, local_rank=0, node="n0", pid=7, started=rows[0][1])
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(rows)}), len(rows)]
    return [Frame(info, first + 1, last, list(_blocks(rows[first:last]))) for first, last in pairwise(edges)]


def _blocks(rows: Sequence[Row]) -> Iterator[PointsBlock | EventBlock]:
    for names, group in groupby(rows, key=lambda row: tuple(row[2])):
        some = list(group)
        if not names:
            for step, time, _ in some:  # a declared rollback
                yield EventBlock("segment", time, None, {"key": f"back-{step}", "to_step": step, "reason": "spike"})
            continue
        yield PointsBlock(
            list(names),
            np.array([row[0] for row in some], "<i8").tobytes(),
            np.array([row[1] for row in some], "<f8").tobytes(),
            np.array([list(row[2].values()) for row in some], "<f8").T.tobytes(),
        )


def write_lines(rows: Sequence[Row], path: Path) -> Path:
    """Write rows as JSON lines, non-finite values bare, as Python's json does."""
    with path.open("w") as file:
        for step, time, values in rows:
            if values:
                file.write(json.dumps({"step": step, "t": time, **values}) + "\n")
    return path


def facts(incidents: Iterable[Incident]) -> list[dict[str, Any]]:
    """Return what incidents are compared by, in the order of their onsets."""
    found = [{key: incident[key] for key in COMPARED} for incident in map(as_json, incidents)]
    return sorted(found, key=lambda each: (each["onset_step"], each["kind"], each["segment"], str(each["metric"])))


def story_frames(story: Sequence[Any], cuts: Sequence[int] = ()) -> list[Frame]:
    """Return a detector's story (``Detector.story``) as frames: each rank a source, forks as declared rollbacks.

    Args:
        cuts: row numbers before which a frame ends; it also ends where the rank changes.
    """
    sources: dict[int, tuple[SourceInfo, int]] = {}
    frames: list[Frame] = []
    ends = {*cuts}

    def key(numbered: tuple[int, Any]) -> tuple[int, int]:
        at, each = numbered
        return sum(cut <= at for cut in ends), getattr(each, "rank", 0)

    told = [each for each in story if hasattr(each, "values") or each.kind == "fork"]
    for (_, rank), group in groupby(enumerate(told), key=key):
        some = [each for _, each in group]
        info, seq = sources.setdefault(rank, (SourceInfo(f"r{rank}-1", rank=rank, started=some[0].time - 1.0), 0))
        blocks = list(_blocks([_as_row(each) for each in some]))
        frames.append(Frame(info, seq + 1, seq + len(some), blocks))
        sources[rank] = (info, seq + len(some))
    return frames


def _as_row(each: Any) -> Row:
    if hasattr(each, "values"):
        return each.step, each.time, dict(each.values)
    return each.step - 1, each.time, {}
