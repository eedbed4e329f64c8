"""What a job declares is stored as it was given; what can't be a name is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
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
