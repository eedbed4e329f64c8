"""What time alone changes in one run: silence becomes a finding, commands expire, a job is over. In slices."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from stabilitybackend.judging.incidents.recipe import Recipe, recipe_of
from stabilitybackend.judging.incidents.suggestion import JobNow
from stabilitybackend.judging.liveness.world_size import left_nodes
from stabilitybackend.runs.changes import Changes
from stabilitybackend.runs.derived.rollback_offer import no_rollback

if TYPE_CHECKING:
    from stabilitybackend.runs.state import RunState

__all__ = ["JOB_OVER_AFTER_S", "Ticking"]

#: A job must be over so long before its open commands are closed, seconds: the last messages of its ranks may still
#: come.
JOB_OVER_AFTER_S = 5.0


class Ticking:
    """Judges one run about once a second."""

    def __init__(self) -> None:
        self._over_since: float | None = None
        self._config: Mapping[str, Any] = {}
        self._recipe = Recipe()

    def of(self, state: RunState, now: float) -> Generator[None, None, Changes]:
        """Judge silence and expiry at ``now``, unix seconds; yield where others may be served, return what changed."""
        changes = Changes()
        for finding in (yield from state.liveness.ticking(now, state.gpus.broken())):
            state.found(finding, now, changes)
            yield
        for finding in state.gpus.tick(now):
            state.found(state.remember(finding, state.incidents.known(finding)), now, changes)
        yield
        commands = state.commands
        for want in state.liveness.wants():
            job = state.job(for_command=False)
            changes.add_commands(commands.ask_for_stacks(want.request, job, want.reason, now))
        job_now = JobNow(
            state.liveness.ended(now) is not None, no_rollback(state, now), self._recipe_of(state.config())
        )
        changes.add_incidents(state.incidents.job_is(job_now, state.usable(), now))
        over = self._how_it_is_over(state, now)
        if not commands.all():
            return changes  # as of nearly all runs
        changes.add_commands(commands.agents_gone(left_nodes(state.agents.values(), state.liveness.left_at), now))
        yield
        changes.add_commands(commands.settle(now))
        job = state.job(for_command=False)
        changes.add_commands([] if over is None else commands.job_over(over, now))
        changes.add_commands(commands.retries(job, now))
        changes.add_commands(commands.ignored(job, now))
        yield
        return changes

    def _recipe_of(self, config: Mapping[str, Any]) -> Recipe:
        if config is not self._config:  # read once: a run is judged every second
            self._config = config
            self._recipe = recipe_of(config)
        return self._recipe

    def _how_it_is_over(self, state: RunState, now: float) -> str | None:
        """Return how a job ended that has been over for long enough, None of another one."""
        ended = state.liveness.ended(now)
        if ended is None:
            self._over_since = None
            return None
        self._over_since = now if self._over_since is None else self._over_since
        return ended[1] if now - self._over_since >= JOB_OVER_AFTER_S else None
