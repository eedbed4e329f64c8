"""The commands of the legs, from the one that was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from stabilitybackend.base.errors import WRONG_USE, BadRequest
from stabilityplugins.drill.command import Commands, fill


@pytest.mark.parametrize(
    ("given", "resumed"),
    [
        (["--nproc-per-node", "4"], ["--nproc-per-node", "2"]),
        (["--nproc_per_node=4"], ["--nproc_per_node=2"]),
    ],
)
def test_the_resumed_run_gets_its_own_number_of_ranks(given: list[str], resumed: list[str]) -> None:
    commands = Commands(["torchrun", *given, "train.py", "{dir}"], ranks=2, resume_args="--resume yes")

    assert commands.straight == ["torchrun", *given, "train.py", "{dir}"]
    assert commands.resumed == ["torchrun", *resumed, "train.py", "{dir}", "--resume", "yes"]
    assert fill(commands.resumed, Path("/here"))[-3:] == ["/here", "--resume", "yes"]


def test_ranks_that_can_not_be_set_are_refused() -> None:
    with pytest.raises(BadRequest) as refused:
        Commands(["srun", "train.py", "{dir}"], ranks=2)

    assert (refused.value.code, "--resume-command" in refused.value.hint) == (WRONG_USE, True)
