"""A job of one rank whose autopilot is asked every few steps, folded in the test's own process with its own clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from stabilitybackend.acting.autopilot.policy import read_policy
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.runs.derived.autopilot import RunAutopilot
from stabilitybackend.runs.feed.pubsub import Channel
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.commands import Command
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.job.autopilot import Autopilot, PilotEntry
from stabilityclient.wire import Frame, Health
from support.job_frames import Job

__all__ = ["ALL", "PilotedJob", "falling", "stuck"]

#: What a job's rollback handler may promise.
ALL = ("lr_scale", "seed", "skip_batches", "skip_range")


#: Steps between two looks of the autopilot.
ROWS = 5


def falling(step: int) -> float:
    """A loss that falls, with noise of its own step."""
    return 3.0 - step * 0.001 + random.Random(step * 7919).gauss(0.0, 0.02)


def stuck(onset: int) -> Callable[[int], float]:
    """The same, with a spike at ``onset`` that does not come back."""
    return lambda step: falling(step) + (2.5 + 0.01 * (step - onset) if step >= onset else 0.0)


class PilotedJob:
    """A job that obeys the autopilot.

    Args:
        policy: YAML. can: what its handler promises. loss: of a step, and of how often it went back.
        checkpoint_every: steps; an agent looks at each and finds all of it there where ``verified``.
        obeys: it goes back where it is ordered to; else the command stays as it is.
    """

    def __init__(
        self,
        policy: str,
        loss: Callable[[int, int], float],
        *,
        can: tuple[str, ...] = ALL,
        checkpoint_every: int = 100,
        verified: bool = True,
        obeys: bool = True,
    ) -> None:
        self.now = 1_000.0
        self.state = RunState("run", lambda: self.now)
        self.pilot = self.new_pilot(policy)
        self.commands: list[Command] = []
        self.entries: list[PilotEntry] = []
        self.asked: list[Incident] = []
        #: (step, phase) whenever what it says changed, and the sentence.
        self.said: list[tuple[int, str, str]] = []
        self.step = 0
        self.went_back = 0
        self._loss, self._every, self._verified, self._obeys = loss, checkpoint_every, verified, obeys
        self.job = Job()
        self.state.agents.health(Health("a1", "n0", self.now, []))
        self.send(self.job.event("start"))
        self.send(self.job.event("handler", can=list(can), branches=True))
        self.send(self.job.event("obeys", orders=["stop"]))

    def new_pilot(self, policy: str) -> RunAutopilot:
        """Return an autopilot that remembers nothing, as after a start of the server with nothing stored."""
        nothing: Any = None
        pilot = RunAutopilot("run", nothing, nothing, Channel(), lambda: self.now)
        pilot._policy = read_policy(policy)
        return pilot

    def send(self, frame: Frame) -> None:
        """Fold a frame."""
        self.now = max(self.now, self.job.now)
        self.state.apply(frame, replayed=False)

    def judge(self) -> Effects:
        """Ask the autopilot, as a tick does."""
        changes = Effects()
        self.pilot.judge(self.state, changes)
        self.entries += changes.entries.values()
        self.commands += changes.commands.values()
        self.asked += [one for one in changes.incidents.values() if one.kind == "autopilot_gave_up"]
        shown = self.shown
        if not self.said or self.said[-1][2] != shown.text:
            self.said.append((self.step, shown.phase, shown.text))
        return changes

    @property
    def shown(self) -> Autopilot:
        """What people see."""
        return self.pilot.shown(self.state)

    def train(self, steps: int) -> PilotedJob:
        """Do so many steps, those after a rollback counted again."""
        for _ in range(0, steps, ROWS):
            done = range(self.step + 1, self.step + ROWS + 1)
            self.step = done[-1]
            losses = [self._loss(step, self.went_back) for step in done]
            self.send(self.job.rows(done, {"loss": losses, "grad_norm": [1.0 + falling(step) / 100 for step in done]}))
            if self.step % self._every == 0:
                self.send(self.job.event("checkpoint", self.step, path=f"c/{self.step}"))
                if self._verified:
                    seen = {"path": f"c/{self.step}", "kind": "file", "complete": True}
                    self.send(self.job.event("checkpoint_seen", self.step, **seen))
            for command in self.judge().commands.values():
                if self._obeys:
                    self.obey(command)
        return self

    def obey(self, command: Command) -> None:
        """Go back as ordered."""
        assert command.to_step is not None
        self.send(self.job.event("command", self.step, command_id=command.command_id, state="acted"))
        key = command.command_id
        self.send(self.job.rolled_back(command.to_step, key, command_id=key, cause="command"))
        self.step, self.went_back = command.to_step, self.went_back + 1
