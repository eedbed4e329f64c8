"""Commands that time alone brings on: retries, expiry, the end of their job, and dumps of stacks of a hang."""

from __future__ import annotations

from collections.abc import Generator

from stabilitybackend.judging.liveness.world_size import left_nodes
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.runs.consumers.agents import Agents
from stabilitybackend.runs.consumers.commands import Commands
from stabilitybackend.runs.consumers.job import Job
from stabilitybackend.runs.consumers.liveness import Liveness

__all__ = ["JOB_OVER_AFTER_S", "Deadlines"]

#: A job must be over so long before its open commands are closed, seconds: the last messages of its ranks may still
#: come.
JOB_OVER_AFTER_S = 5.0


class Deadlines(Consumer):
    """Closes and repeats the commands of a run."""

    reads = (Commands, Liveness, Agents, Job)

    def __init__(self, commands: Commands, liveness: Liveness, agents: Agents, job: Job) -> None:
        self._commands, self._liveness, self._agents, self._job = commands, liveness, agents, job
        self._over_since: float | None = None

    def tick(self, now: float, effects: Effects) -> Generator[None]:
        commands, monitor = self._commands.book, self._liveness.monitor
        for want in monitor.wants():
            job = self._job.view(for_command=False)
            effects.add_commands(commands.ask_for_stacks(want.request, job, want.reason, now))
        over = self._how_it_is_over(now)
        if not commands.all():
            return  # as of nearly all runs
        effects.add_commands(commands.agents_gone(left_nodes(self._agents.all.values(), monitor.left_at), now))
        yield
        effects.add_commands(commands.settle(now))
        job = self._job.view(for_command=False)
        effects.add_commands([] if over is None else commands.job_over(over, now))
        effects.add_commands(commands.retries(job, now))
        effects.add_commands(commands.ignored(job, now))
        yield

    def _how_it_is_over(self, now: float) -> str | None:
        """Return how a job ended that has been over for long enough, None of another one."""
        ended = self._liveness.monitor.ended(now)
        if ended is None:
            self._over_since = None
            return None
        self._over_since = now if self._over_since is None else self._over_since
        return ended[1] if now - self._over_since >= JOB_OVER_AFTER_S else None
