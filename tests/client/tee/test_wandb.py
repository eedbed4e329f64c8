"""What a script tells W&B comes to our run: W&B's own file is the truth, value by value, at the steps of its rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from support.agent.teed import Teed, teed
from support.installed import needs

pytestmark = needs("wandb", "the scripts of this test use W&B")

#: All ways in which W&B counts rows; numbers of several kinds; what is no number.
KINDS = """
    import decimal, math, os
    import numpy as np, wandb

    run = wandb.init(project="p", name="first", config={"lr": 3e-4, "model": {"layers": 2}})
    wandb.config.update({"later": 5})
    for number in range(3):
        wandb.log({"loss": number * 0.1, "f32": np.float32(1.1), "flag": True, "i64": np.int64(4)})
    wandb.log({"p": 1.5}, commit=False)
    wandb.log({"q": 2.5}, commit=False)
    wandb.log({"r": 3.5})
    wandb.log({"s": 1.0}, step=50)
    wandb.log({"t": 2.0}, step=50)
    wandb.log({"s": 1.5}, step=52)
    run.log({"u": 4.0})
    run.log({"u": 5.0}, step=60, commit=True)
    wandb.log({"u": 6.0})
    wandb.log({"nan": math.nan, "inf": -math.inf, "inner": {"x": 1, "y": {"z": 2.0}}, "one": np.ones(1), "big": 10**30})
    wandb.log({"none": None, "text": "hello", "array": np.zeros(3), "list": [1, 2], "last": 7.0,
               "picture": wandb.Image(np.zeros((4, 4, 3), dtype=np.uint8)), "bars": wandb.Histogram([1, 2])})
    for wrong in ({1: 2}, "text"):
        try:
            wandb.log(wrong)
        except TypeError as error:
            print(error)
    assert wandb.init(mode=os.environ["WANDB_MODE"]) is run
    wandb.log({"open": 1.0}, commit=False)
"""


def truth(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the numbers in W&B's files, read with the reader of our imports, and named as W&B's tables name them."""
    from stabilitybackend.importers.troubles import Reading
    from stabilitybackend.importers.wandb_files import _messages, _record_class

    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for _, _, data in _messages(path, Reading()):
            history = _record_class().FromString(data).history
            row = {one.key or ".".join(one.nested_key): json.loads(one.value_json) for one in history.item}
            pictures = tuple(name.removesuffix("_type") for name in row if name.endswith("._type"))
            for name, value in flat(row):
                if not name.startswith(("_", *pictures)):
                    found.setdefault(name, []).append((row["_step"], value))
    return found


def flat(row: dict[str, Any]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in row.items():
        if isinstance(value, dict) and "_type" not in value:
            found += [(f"{name}.{inner}", one) for inner, one in flat(value)]
        elif value in ("NaN", "Infinity", "-Infinity"):
            found.append((name, float(value.replace("Infinity", "inf"))))
        elif isinstance(value, int | float):
            found.append((name, float(value)))
    return found


def came(done: Teed) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for step, _, row in done.rows():
        for name, value in row.items():
            found.setdefault(name, []).append((step, value))
    return found


def test_each_number_comes_at_the_step_of_its_row_under_its_name(tmp_path: Path) -> None:
    done = teed(tmp_path, KINDS)

    assert (done.code, len(done.out.splitlines())) == (0, 2), done.err
    assert repr(came(done)) == repr({name: truth(tmp_path)[name] for name in came(done)})
    assert set(came(done)) == set(truth(tmp_path))
    assert math.isnan(came(done)["nan"][0][1])


def test_the_config_comes_too_with_what_was_added_after_the_start(tmp_path: Path) -> None:
    config = teed(tmp_path, KINDS).config()

    assert {key: config[key] for key in ("lr", "model", "later")} == {"lr": 3e-4, "model": {"layers": 2}, "later": 5}
    assert (config["wandb"]["project"], config["wandb"]["name"]) == ("p", "first")


def test_the_same_comes_where_wandb_itself_is_disabled(tmp_path: Path) -> None:
    code = "import wandb\nwandb.init(config={'lr': 1})\nfor n in range(3): wandb.log({'loss': n / 4})"

    done = teed(tmp_path, code, WANDB_MODE="disabled")

    assert (done.values("loss"), done.config()["lr"]) == ([(0, 0.0), (1, 0.25), (2, 0.5)], 1)


#: Rows -> the steps at which their losses come.
AXES = {
    "a step of the training among the values": (
        "for n in range(4): wandb.log({'iter': n * 250, 'loss': n})",
        [0, 250, 500, 750],
    ),
    "the axis that define_metric names": (
        "wandb.define_metric('*', step_metric='seen')\nfor n in range(3): wandb.log({'seen': n * 8, 'loss': n})",
        [0, 8, 16],
    ),
    "another axis of some metrics only": (
        "wandb.define_metric('val/*', step_metric='epoch')\nfor n in range(3): wandb.log({'epoch': 9, 'loss': n})",
        [0, 1, 2],
    ),
    "a step that is given wins": ("for n in range(3): wandb.log({'iter': 1, 'loss': n}, step=n * 5)", [0, 5, 10]),
    "a row without the step is at the newest one": (
        "for n in range(3):\n wandb.log({'iter': n * 10, 'x': 0})\n wandb.log({'loss': n})",
        [0, 10, 20],
    ),
    "a count within the epoch is no step": (
        "for e in range(2):\n for n in range(3): wandb.log({'step': n, 'loss': n})",
        [0, 1, 2, 3, 4, 5],
    ),
    "a second run in the same process": (
        "wandb.log({'loss': 0})\nwandb.finish()\nwandb.init(name='b')\nwandb.log({'loss': 7})",
        [0],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("code", "steps"), AXES.values(), ids=list(AXES))
def test_a_row_comes_at_the_step_of_the_training(tmp_path: Path, code: str, steps: list[int]) -> None:
    done = teed(tmp_path, "import wandb\nwandb.init()\n" + code, WANDB_MODE="disabled")

    assert (done.code, [step for step, _ in done.values("loss")]) == (0, steps), done.err


def test_a_second_run_of_the_process_keeps_its_values_apart_under_its_name(tmp_path: Path) -> None:
    code = "import wandb\nfor name in 'ab':\n wandb.init(name=name)\n wandb.log({'loss': 1.5})\n wandb.finish()"

    done = teed(tmp_path, code)

    assert (done.values("loss"), done.values("b/loss")) == ([(0, 1.5)], [(0, 1.5)])


def test_the_key_that_somebody_names_is_the_step(tmp_path: Path) -> None:
    code = "import wandb\nwandb.init()\nfor n in range(3): wandb.log({'tokens': n * 100, 'loss': n})"

    done = teed(tmp_path, code, options=("--step-key", "tokens"), WANDB_MODE="disabled")

    assert [step for step, _ in done.values("loss")] == [0, 100, 200]
