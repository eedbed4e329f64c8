"""A plug-in of the agent that can't be used is named in its log, and the others are used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stabilityclient.agent.gpu import conditions
from stabilityclient.agent.modules import load_plugins


def test_a_broken_file_is_named_and_the_next_one_adds_its_condition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "CONDITIONS", dict(conditions.CONDITIONS))
    (broken := tmp_path / "broken.py").write_text("raise RuntimeError('no DCGM here')\n")
    (good := tmp_path / "good.py").write_text(
        "from stabilityclient.agent.gpu.conditions import Condition, register\n"
        "register(Condition('rows', 142, 'row{} replaced', counts=True))\n"
    )
    said: list[str] = []

    load_plugins({"STABILITY_AGENT_PLUGINS": f"{broken}{os.pathsep}{good}"}, said.append)

    assert said == [f"STABILITY_AGENT_PLUGINS: {broken} is not used: RuntimeError: no DCGM here"]
    assert conditions.CONDITIONS["rows"].field == 142
