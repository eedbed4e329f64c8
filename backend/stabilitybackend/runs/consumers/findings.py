"""Findings of all other consumers become incidents, with their evidence, and commands that the server gives itself."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from stabilitybackend.base.stateful import Stateful
from stabilitybackend.judging.batches.fold import BatchFold
from stabilitybackend.judging.batches.kept import KeptBatches
from stabilitybackend.judging.detection.evidence import EvidenceCollector
from stabilitybackend.judging.detection.run_detection import Judge
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.incidents.incidents import alert_finding
from stabilitybackend.judging.incidents.recipe import Recipe, recipe_of
from stabilitybackend.judging.incidents.suggestion import JobNow
from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.changes import Forked, LineageEvent
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.lineage.lineage import Given, Lineage
from stabilitybackend.runs.consumers.advice_turns import turned
from stabilitybackend.runs.consumers.commands import Commands
from stabilitybackend.runs.consumers.incidents import Incidents
from stabilitybackend.runs.consumers.job import Job, first_step
from stabilitybackend.runs.consumers.liveness import Liveness
from stabilitybackend.schema.commands import KINDS, Command, CommandRequest
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.resumes import BY_RESUMES

__all__ = ["Findings"]


class Findings(Consumer):
    """Takes the findings of each item when all other consumers were handed it."""

    reads = (Given, Lineage, Judge, BatchFold, KeptBatches, Commands, Liveness, Incidents, Job)
    events = frozenset({"alert", "batch"})

    def __init__(
        self, given: Given, lineage: Lineage, judge: Judge, batches: BatchFold, kept: KeptBatches, commands: Commands,
        liveness: Liveness, incidents: Incidents, job: Job,
    ) -> None:  # fmt: skip
        self._given, self._lineage, self._judge, self._batches, self._kept = given, lineage, judge, batches, kept
        self._commands, self._liveness, self._incidents, self._job = commands, liveness, incidents, job
        self._evidence = EvidenceCollector()
        self._config: Mapping[str, Any] = {}
        self._recipe = Recipe()

    def state(self) -> Mapping[str, Stateful]:
        return {"evidence": self._evidence}

    def rows(self, batch: Batch, effects: Effects) -> None:
        if not effects.reports:
            effects.found.clear()
            return
        book = self._incidents.book
        if not effects.found and book.turns_at() is None:
            return
        judged = batch.segment == self._lineage.fold.tree.head and not batch.stray
        rows = [one for one in batch.each() if one.rank == self._judge.primary] if judged else []
        self.conclude(effects, rows)
        if rows and book.turns_at() is not None:
            effects.add_incidents(turned(book, rows, self._incidents.usable()))

    def event(self, event: LineageEvent, effects: Effects) -> None:
        if event.type == "batch":
            self._evidence.batch(event.source.rank, event.step, event.data)
        else:
            effects.found.append((event.time, alert_finding(event)))

    def forked(self, fork: Forked, effects: Effects) -> None:
        if fork.is_head:
            self._evidence.forked(fork.segment.kept_step)

    def tick(self, now: float, effects: Effects) -> Generator[None]:
        found, effects.found = effects.found, []
        for time, finding in found:
            self.take(finding, time, effects)
            yield
        ended = self._liveness.monitor.ended(now) is not None
        job = JobNow(ended, self._job.no_rollback(), self._recipe_now())
        effects.add_incidents(self._incidents.book.job_is(job, self._incidents.usable(), now))

    def conclude(self, effects: Effects, rows: Sequence[Placed] = ()) -> None:
        """Take the findings of an item, where any are reported; ``rows``: new ones of the rank that is judged."""
        found, effects.found = effects.found, []
        for time, finding in found if effects.reports else ():
            book = self._incidents.book
            effects.add_incidents(turned(book, rows, self._incidents.usable(), finding.now_step))
            if not book.has_similar(finding, BY_RESUMES):
                self.take(finding, time, effects)

    def take(self, finding: Finding, time: float, effects: Effects) -> None:
        """Make an incident of a finding, or merge it into the one that it continues."""
        if self._batches.knew(finding):
            return
        fold, book = self._lineage.fold, self._incidents.book
        if finding.kind == "gpu_fault":
            finding = self._given.remember(finding, book.known(finding))
        finding = self._evidence.add(
            finding, time, rank=self._judge.primary, store=self._judge.store, fold=fold, incidents=book,
            names=self._judge.names,
        )  # fmt: skip
        if finding.kind == "sdc_suspect":
            finding = self._liveness.monitor.placed(finding, book.known(finding))
        segment = fold.tree.segment_at(fold.tree.head, finding.onset_step)
        changed = book.apply(finding, segment=segment, time=time, checkpoints=self._incidents.usable())
        effects.add_incidents(changed)
        effects.add_commands(() if effects.replayed else self._own_commands(changed, time))

    def _own_commands(self, incidents: Iterable[Incident], time: float) -> list[Command]:
        """Return the commands that the server gives itself for changed incidents, where the job wants it.

        A note of one odd batch counts, too: there the batch is the whole story. Of a train its first one does. Findings
        from a backlog or an import are past: no ring holds them any more.

        Args:
            time: of the point that showed it.
        """
        found: list[Command] = []
        now = self._given.clock()
        late = now - time > KINDS["show_batches"].expires_s
        for incident in incidents if self._kept.on_spike and not late else ():
            new = incident.version == 1 and incident.nth == 1 and not incident.dead
            if new and kind_of(incident.kind).damages_weights:
                name = f"{self._given.run_id}\0{incident.incident_id}"
                key = hashlib.sha256(name.encode()).hexdigest()[:16]
                request = CommandRequest(
                    "show_batches", incident_id=incident.incident_id, step=first_step(incident),
                    reason=f"found: {incident.title}",
                )  # fmt: skip
                job = self._job.view(for_command=False)
                found += self._commands.book.ask_for_batches(request, f"b-{key}", job, now)
        return found

    def _recipe_now(self) -> Recipe:
        config = self._given.config()
        if config is not self._config:  # read once: a run is judged every second
            self._config, self._recipe = config, recipe_of(config)
        return self._recipe
