"""What a job declares is stored as it was given; what can't be a name is refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stabilityclient
from stabilityclient.wire import EventBlock
from support.agent.spooled import frames

Start = Callable[..., stabilityclient.Run]


def declared(run: stabilityclient.Run, kind: str) -> list[tuple[int | None, dict[str, Any]]]:
    """Return step and data of the events of a kind on the run's spool."""
    blocks = [block for frame in frames(run.folder) for block in frame.blocks]
    return [(one.step, one.data) for one in blocks if isinstance(one, EventBlock) and one.type == kind]


def config(run: stabilityclient.Run) -> Any:
    """Return what the agent introduces the run with."""
    assert run.folder is not None
    return json.loads((Path(run.folder) / "run.json").read_text())["config"]


def test_config_that_comes_later_is_added_to_what_is_known(start: Start) -> None:
    run = start(config={"lr": 1.0, "seed": 3})
    run.update_config({"lr": 0.5, "model": {"layers": 2}, "device": Path("cuda")})
    assert config(run) == {"lr": 0.5, "seed": 3, "model": {"layers": 2}, "device": "cuda"}


def test_config_that_would_be_too_long_leaves_it_as_it_is(start: Start) -> None:
    run = start(config={"seed": 3})
    run.update_config({str(number): "x" * 10_000 for number in range(200)})
    assert config(run) == {"seed": 3}


def test_names_are_stored_by_role_and_by_data_set(start: Start) -> None:
    run = start()
    run.names(loss="objective", ratio={"web": "mix/web", "code": "mix/code"}, losses={"web": "nll_web"})
    run.finish()
    assert declared(run, "names") == [
        (
            None,
            {
                "roles": {"loss": "objective"},
                "datasets": {"loss": {"web": "nll_web"}, "ratio": {"web": "mix/web", "code": "mix/code"}},
            },
        )
    ]


@pytest.mark.parametrize("given", [{"loss": ""}, {"lr": 3}, {"ratio": {"web": None}}, {"tokens": {"": "a"}}])
def test_what_is_no_name_is_refused(start: Start, given: dict[str, Any]) -> None:
    run = start()
    with pytest.raises(stabilityclient.RefusedError, match="expected a name of 1 to 200 characters"):
        run.names(**given)
    run.finish()
    assert declared(run, "names") == []


def test_a_mixture_is_stored_with_its_unit_and_step_and_adds_up_to_one(start: Start) -> None:
    run = start()
    run.mixture({"web": 0.667, "code": 0.333}, unit="samples")
    run.mixture({"web": 0.25, "code": 0.75}, step=1_000)
    run.finish()
    assert declared(run, "mixture") == [
        (None, {"shares": {"web": 0.667, "code": 0.333}, "unit": "samples"}),
        (1_000, {"shares": {"web": 0.25, "code": 0.75}, "unit": "tokens"}),
    ]


@pytest.mark.parametrize(
    "shares", [{"web": 0.7}, {"web": 1.2, "code": -0.2}, {"web": True}, {}, {"web": 70, "code": 30}]
)
def test_shares_that_are_none_are_refused(start: Start, shares: dict[str, Any]) -> None:
    run = start()
    with pytest.raises(stabilityclient.RefusedError, match="expected"):
        run.mixture(shares)
    run.finish()
    assert declared(run, "mixture") == []
