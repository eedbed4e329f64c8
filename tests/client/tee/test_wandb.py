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
    from stabilityplugins.importers.problems import Reading
    from stabilityplugins.importers.wandb_files import _messages, _record_class

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


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Teed:
    return teed(tmp_path_factory.mktemp("job"), KINDS)


def test_each_number_comes_at_the_step_of_its_row_under_its_name(done: Teed) -> None:
    assert (done.code, len(done.out.splitlines())) == (0, 2), done.err
    true = truth(done.folder)
    assert repr(came(done)) == repr({name: true[name] for name in came(done)})
    assert set(came(done)) == set(true)
    assert math.isnan(came(done)["nan"][0][1])


def test_the_config_comes_too_with_what_was_added_after_the_start(done: Teed) -> None:
    config = done.config()

    assert {key: config[key] for key in ("lr", "model", "later")} == {"lr": 3e-4, "model": {"layers": 2}, "later": 5}
    assert (config["wandb"]["project"], config["wandb"]["name"]) == ("p", "first")


#: Two runs of one process, while W&B itself is disabled; a writer of event files beside it says the same.
DISABLED = """
    import wandb

    for name in ("a", "b"):
        wandb.init(name=name, config={"lr": 1})
        wandb.define_metric("*", step_metric="seen")
        for number in range(3):
            wandb.log({"seen": number * 8, "loss": number / 4})
        wandb.finish()
"""


def test_the_same_comes_where_wandb_itself_is_disabled_and_a_second_run_is_kept_apart(tmp_path: Path) -> None:
    done = teed(tmp_path, DISABLED, WANDB_MODE="disabled")

    assert (done.code, done.config()["lr"]) == (0, 1), done.err
    assert done.values("loss") == done.values("b/loss") == [(0, 0.0), (8, 0.25), (16, 0.5)]
