"""The resumes of a run, compared for as long as possible, and their results. A pure fold."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.batches.fold import BatchFold
from stabilitybackend.judging.batches.positions import Positions
from stabilitybackend.judging.detection.run_detection import Judge
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.liveness.world_size import LaunchSizes
from stabilitybackend.judging.resumes.branches import BranchReader, ForkBranches, left_head
from stabilitybackend.judging.resumes.orders import not_followed, reported
from stabilitybackend.judging.resumes.overlap import MAX_POINTS, ForkMeasures, measure
from stabilitybackend.judging.resumes.parts import parts_of
from stabilitybackend.judging.resumes.reported import EVENTS, Reported, environment_changes
from stabilitybackend.judging.resumes.reported_parts import Reports
from stabilitybackend.judging.resumes.verdict import (
    RATE_IS,
    check_skip,
    clause_of,
    grade_of,
    sentence_of,
    verdict_of,
    wrongs_of,
)
from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.changes import Forked, LineageEvent
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.lineage.left_out import left_out
from stabilitybackend.lineage.lineage import Lineage
from stabilitybackend.lineage.tree import FoldedSegment, PathRange
from stabilitybackend.schema.resumes import (
    BY_RESUMES,
    ORDER_NOT_FOLLOWED,
    Changed,
    Determinism,
    PositionCheck,
    Resume,
    ResumeGrade,
    Resumes,
    Shift,
)

__all__ = ["MAX_RESUMES", "ResumeBook"]


def check_position(
    positions: Positions,
    new: Sequence[PathRange],
    old: Sequence[PathRange] | None,
    fork_step: int,
    last_step: int,
    declared: Mapping[str, Any],
    *,
    same_ranks: bool,
) -> PositionCheck | None:
    """Return the loader's position after the resume, None without any report.

    Args:
        new, old: ranges of the new branch, and of the discarded one (None: the job did not go back).
        last_step: the newest step that counts.
        declared: requested changes. same_ranks: as many as before: the position is that of one of them.
    """
    if not positions:
        return None
    saved, first = positions.newest(new, fork_step), positions.first_after(new, fork_step)
    if first is None or first[0] > last_step:
        return PositionCheck("not_seen", "no position was reported since", *(saved or ()))
    if saved is None:
        return PositionCheck("not_seen", f"no position was reported up to step {fork_step}", None, None, *first)
    step, now = first
    found = partial(PositionCheck, saved_step=saved[0], saved=saved[1], step=step, position=now)
    there = None if old is None else positions.on(old, step)
    if there == now:
        return found("goes_on", f"position {_n(now)} at step {step}, as on the branch that was left", by=0)
    was, distance, pace = saved[1], step - saved[0], positions.pace(new, fork_step)
    if isinstance(was, str) or isinstance(now, str):
        if there is not None:
            return found("elsewhere", f"position {now} at step {step}, where it was {there} before")
        return found("not_seen", "positions that are texts can only be compared at steps trained twice")
    if not same_ranks:
        return found("not_seen", "another number of ranks: one rank's positions can't be compared")
    if pace is None:
        return found("not_seen", "too few positions before the fork to know what a step takes")
    due, most = round(was + distance * pace.usual), was + distance * pace.most
    by, at = now - due, f"position {_n(now)} at step {step}, where {_n(due)} was due"
    if was + distance * pace.least <= now <= most:
        return found("goes_on", f"position {_n(now)} at step {step}, {_n(was)} at step {saved[0]}", by=0)
    if now > most:
        skip = left_out(declared, fork_step)
        count = 0 if skip is None or skip[0] > step else skip[1] - skip[0] + 1
        taken = distance + count
        if count and was + taken * pace.least <= now <= was + taken * pace.most:
            return found("skipped", f"{at}: {count} batches were left out as ordered", by=by, ordered=True)
        return found("skipped", f"{at}: {_n(by)} were left out", by=by)
    if now <= distance * pace.most:
        end = positions.highest_before_a_fall(new, fork_step)
        if end is not None and most > end:
            return found("not_seen", f"{at}, but a pass over the data ends there", by=by)
        return found("began_again", at, by=by)
    return found("repeats", f"{at}: {_n(-by)} come again", by=by)


def _n(position: int | str) -> str:
    return position if isinstance(position, str) else f"{position:,}"


#: Metrics kept of a resume, differing ones first.
MAX_COMPARED = 24


def finding_of(resume: Resume, wrongs: Sequence[str], newest: int, *, over: bool) -> Finding:
    """Return the finding of a faulty resume.

    Args:
        newest: the newest compared step. over: its state is final.
    """
    kind, what = "resume_artifact", "Wrong resume"
    if resume.verdict == "repeated":
        kind, what = "repeat_data", "Repeated data"
    elif all(wrong.startswith(RATE_IS) for wrong in wrongs):
        kind, what = "learning_rate", "Learning rate far off"
    words = "; ".join(wrongs)
    return Finding(
        detector=BY_RESUMES,
        key=f"{BY_RESUMES}:{resume.segment}:{resume.fork_step}",
        kind=kind,
        state="recovered" if over else "open",
        severity="warning",
        title=f"{what} after step {resume.fork_step}",
        text=f"{words[:1].upper()}{words[1:]}. {resume.text.partition(' Wrong: ')[0]}",
        onset_step=resume.fork_step + 1,
        step=newest,
        now_step=newest,
        recovered_step=newest if over else None,
        metric=resume.loss,
        score=0.0,
        evidence={
            "fork_step": resume.fork_step,
            "verdict": resume.verdict,
            "causes": wrongs,
            "points": resume.points,
            "r": resume.r,
            "shift_steps": None if resume.shift is None else resume.shift.steps,
            "ids": resume.ids,
            "same_ids": resume.same_ids,
            "parts": {part.part: part.known for part in resume.parts},
        },
    )


def order_finding(resume: Resume, applied: Mapping[str, Any] | None, newest: int, *, over: bool) -> Finding:
    """Return the finding of requested or declared changes that did not happen.

    Args:
        applied: changes reported by the job.
        newest: the newest compared step. over: another rollback or resume followed.
    """
    clauses = "; ".join(map(clause_of, resume.not_followed)) or "what came since shows that it was followed"
    what = "Order" if resume.cause == "command" else "Declared change"
    return Finding(
        detector=BY_RESUMES,
        key=f"{ORDER_NOT_FOLLOWED}:{resume.segment}:{resume.fork_step}",
        kind=ORDER_NOT_FOLLOWED,
        state="resolved" if over else "open",
        severity="warning",
        title=f"{what} not followed after step {resume.fork_step}",
        text=f"{clauses[:1].upper()}{clauses[1:]}.",
        onset_step=resume.fork_step + 1,
        step=newest,
        now_step=newest,
        recovered_step=newest if over else None,
        metric=resume.loss,
        score=0.0,
        evidence={
            "fork_step": resume.fork_step,
            "not_followed": msgspec.to_builtins(resume.not_followed),
            "applied": reported(applied),
            "points": resume.points,
            "ids": resume.ids,
        },
    )


def numbers_of(seen: ForkMeasures) -> Mapping[str, Any]:
    """Return the measured fields of a resume."""
    gaps = sorted(abs(gap) for gap in seen.gap.tolist() if math.isfinite(gap))
    shift = None
    if seen.ids is not None and seen.ids.shift is not None:
        shift = Shift(seen.ids.shift[0], None, None, seen.ids.shift[1])
    elif seen.elsewhere is not None:
        found = seen.elsewhere
        shift = Shift(found.steps, round(found.r, 4), round(found.sigmas, 2), found.points)
    return {
        "loss": seen.loss,
        "points": len(seen.common),
        "first_step": int(seen.common[0]) if len(seen.common) else None,
        "last_step": int(seen.common[-1]) if len(seen.common) else None,
        "equal_points": seen.equal,
        "r": None if seen.same is None else round(seen.same.r, 4),
        "r_sigmas": None if seen.same is None else round(seen.same.sigmas, 2),
        "difference": gaps[len(gaps) // 2] if gaps else None,
        "noise": seen.noise or None,
        "shift": shift,
        "ids": 0 if seen.ids is None else seen.ids.points,
        "same_ids": 0 if seen.ids is None else seen.ids.same,
        "metrics": sorted(seen.compared, key=lambda one: one.equal == one.points)[:MAX_COMPARED],
    }


_quiet = QuietLog(logging.getLogger(__name__))


#: Resumes kept, newest ones: 3 KB each.
MAX_RESUMES = 128
#: Losses since the fork after which the result is final once the steps of the old branch are passed.
SETTLED_POINTS = 128
#: Losses since the fork from which other places are searched for them.
SEARCH_POINTS = 16

#: Content of batch ids, parts and samples of each.
_Layout = tuple[str, int, int]
#: A finding, with the log time of its row, unix seconds.
Found = tuple[float, Finding]


@dataclass(slots=True)
class _ResumeWatch:
    """A resume under comparison.

    Attributes:
        old: the segment that was the head before, None where the job did not go back.
        points, newest: losses since the fork, and the step of the last of them.
        layout: of batch ids before.
        due: number of points for the next comparison.
        wrongs: reported faults. denied: changes reported as not followed.
        process: of the compared rank, before.
    """

    segment: int
    fork_step: int
    old: int | None
    cause: str
    created: float
    world_before: int
    layout: _Layout
    process: str = ""
    declared: dict[str, Any] = field(default_factory=dict)
    points: int = 0
    newest: int = -1
    due: int = 1
    wrongs: int = 0
    denied: int = 0


class ResumeBook(Stateful, Consumer):
    """The resumes of one run.

    Compared after 1, 2, 3, 4, 6, 8, 12, 16 ... losses: each comparison reads both branches again, from the run's points
    up to the row before the newest, so that borders of frames change nothing.

    """

    reads = (Lineage, Judge, BatchFold, LaunchSizes)
    events = EVENTS

    _resumes: list[Resume] = fresh(list)
    _left_out: int = 0
    #: Reports of processes about themselves.
    reported: Reported = fresh(Reported)
    #: Comparisons that failed by a defect here.
    failures: int = 0
    _watch: _ResumeWatch | None = None
    #: Segment of the resume with changes reported as not followed, until the next one begins.
    _denied: int | None = None
    #: Of the compared rank: process and segment of its newest row, its step, and the ranks of its launch.
    _source: str = ""
    _segment: int = 0
    _newest: int = -1
    _world: int = 0

    def __init__(self, lineage: Lineage, judge: Judge, batches: BatchFold, sizes: LaunchSizes) -> None:
        super().__init__()
        self._judge, self._batches, self._sizes = judge, batches, sizes

    def state(self) -> Mapping[str, Stateful]:
        return {"resumes": self}

    def _run(self) -> BranchReader:
        judge, watch = self._judge, self._watch
        note = "" if watch is None else _other_layout(watch.layout, self._layout())
        ids = None if note else self._batches.ids
        return BranchReader(judge.store, judge.fold, ids, note, judge.primary, judge.names.known_as)

    def _layout(self) -> _Layout:
        known = self._batches.coverage.layouts
        return (known[-1].of, known[-1].parts, known[-1].samples) if known else ("", 0, 0)

    # --- its input -----------------------------------------------------------------------------------------------

    def forked(self, fork: Forked, effects: Effects) -> None:
        if fork.is_head:
            effects.found += self._forked(fork.segment)

    def _forked(self, segment: FoldedSegment) -> list[Found]:
        """Begin to watch the new head, or watch it anew where its fork moved; return the reports on the last."""
        watch, run = self._watch, self._run()
        if watch is not None and watch.segment == segment.id:
            watch.fork_step, watch.cause, watch.due = segment.fork_step, segment.cause, watch.points
            watch.old = left_head(run.fold, segment.id)
            return []
        found = [*self._compare(run, segment.created, last=True), *self._superseded(segment.created)]
        self._begin(
            segment.id, segment.fork_step, left_head(run.fold, segment.id), segment.cause, segment.created,
            dict(list(segment.changes.items())[:16]),
        )  # fmt: skip
        return found

    def rows(self, batch: Batch, effects: Effects) -> None:
        """Take rows that were just stored; those of its rank on the effective path count."""
        rank = self._judge.primary
        if rank is None or batch.stray or batch.segment != self._judge.fold.tree.head:
            return
        own = [placed for placed in batch.each() if placed.rank == rank] if self._has(batch, rank) else []
        if own:
            effects.found += self._take(own, self._sizes.size)

    @staticmethod
    def _has(batch: Batch, rank: int) -> bool:
        return any(source.rank == rank for table in batch.tables for source in table.sources)

    def _take(self, together: Sequence[Placed], world: int) -> list[Found]:
        first = together[0]
        found = []
        went_on = self._source and first.source != self._source and first.segment == self._segment
        if went_on and int(first.steps[0]) > self._newest:
            found += self._compare(self._run(), float(first.times[0]), last=True)
            found += self._superseded(float(first.times[0]))
            self._begin(first.segment, self._newest, None, "resume", float(first.times[0]), {})
        self._source, self._segment, self._world = first.source, first.segment, world
        self._newest = max(int(placed.steps[-1]) for placed in together)
        watch = self._watch
        if watch is None or watch.segment != first.segment:
            return found
        run = self._run()
        for step, time in _rows_of(together, run):
            if self._watch is None:
                break
            if step <= watch.newest or step <= watch.fork_step:
                continue
            if watch.points >= watch.due:
                found += self._compare(run, time)
            watch.points, watch.newest = watch.points + 1, step
        return found

    def needs_rows_apart(self, batch: Batch) -> bool:
        """Return whether rows are compared, or begin to be."""
        if self._watch is not None and self._watch.segment == batch.segment:
            return True
        if not self._source or batch.segment != self._segment or batch.stray:
            return False
        primary = self._judge.primary
        return any(
            source.rank == primary and source.source != self._source
            for table in batch.tables for source in table.sources
        )  # fmt: skip

    def event(self, event: LineageEvent, effects: Effects) -> None:
        effects.found += self._reports_of(event)

    def _reports_of(self, event: LineageEvent) -> list[Found]:
        """Take a process's report of its environment; look again where that differs from an earlier one."""
        self.reported.take(event)
        watch = self._watch
        if event.type != "environment" or watch is None or not watch.points:
            return []
        if self._changes(watch) == self._resumes[-1].environment:
            return []
        return self._compare(self._run(), event.time)

    # --- comparing -----------------------------------------------------------------------------------------------

    def _begin(
        self, segment: int, fork_step: int, old: int | None, cause: str, created: float, declared: dict[str, Any]
    ) -> None:
        self._watch = watch = _ResumeWatch(
            segment, fork_step, old, cause, created, self._world, self._layout(), self._source, declared
        )
        self.reported.went_back(self._judge.fold.launches.started_with(self._source))
        self._resumes.append(self._resume(watch, None, settled=False))
        if len(self._resumes) > MAX_RESUMES:
            del self._resumes[0]
            self._left_out += 1

    def _compare(self, run: BranchReader, time: float, *, last: bool = False) -> list[Found]:
        """Compare the branches; return findings.

        A defect here costs this comparison: it is counted and logged, and detectors and points continue.
        """
        watch = self._watch
        if watch is None:
            return []
        try:
            with np.errstate(all="ignore"):  # non-finite values are facts here, and no trouble
                return self._compare_now(watch, run, time, last=last)
        except Exception as error:
            self.failures += 1
            self._watch = None  # and so no later look will settle it
            ended = "Comparing ended by a fault of ours, which the server's log names."
            before = self._resumes[-1]
            self._resumes[-1] = replace(before, settled=True, text=f"{before.text} {ended}")
            _quiet.log(logging.ERROR, f"resume after step {watch.fork_step} can't be compared: {error}", error)
            return []

    def _compare_now(self, watch: _ResumeWatch, run: BranchReader, time: float, *, last: bool) -> list[Found]:
        seen = None
        if run.rank is not None and watch.points:
            branches = ForkBranches(run, watch.fork_step, watch.old, watch.segment, watch.newest)
            seen = measure(branches, watch.declared, search=watch.points >= SEARCH_POINTS)
        resume = self._resume(watch, seen, settled=False)
        over = (
            watch.points >= SETTLED_POINTS and resume.verdict != "repeated" and (resume.last_step or 0) < watch.newest
        )
        settled = last or watch.points >= MAX_POINTS or over
        resume = replace(resume, settled=settled)
        self._resumes[-1] = resume
        watch.due = _next(watch.points)
        if settled:
            self._watch = None
        return self._report(watch, seen, resume, time)

    def _resume(self, watch: _ResumeWatch, seen: ForkMeasures | None, *, settled: bool) -> Resume:
        verdict = verdict_of(seen)
        exact = next((one for one in reversed(self._resumes) if one.exact and one.fork_step != watch.fork_step), None)
        reports = self._reports(watch)
        parts = parts_of(seen, verdict, reports)
        skip = check_skip(seen, verdict)
        denied = not_followed(seen, self._applied(watch), skip)
        wrongs = [*wrongs_of(seen, verdict, denied), *map(clause_of, denied)]
        grade, text = grade_of(seen, verdict, parts, wrongs), sentence_of(seen, verdict, skip, wrongs, reports)
        if seen is not None and verdict == "same_data" and not seen.equal and exact is not None:
            cause = "weights or RNG are not those of the checkpoint, or the machine is another"
            cause = "it may be the environment" if reports.changes else cause
            text += f" After step {exact.fork_step} this job gave bit-equal losses: here {cause}."
            grade = "differs" if grade == "good" else grade
        resume = Resume(
            segment=watch.segment,
            fork_step=watch.fork_step,
            cause=watch.cause,
            created=watch.created,
            verdict=verdict,
            grade=grade,
            text=text,
            settled=settled,
            parts=parts,
            declared=watch.declared,
            world_before=watch.world_before,
            world_after=self._world,
            position=reports.position,
            environment=None if reports.changes is None else list(reports.changes),
            not_followed=denied,
        )
        return resume if seen is None else replace(resume, skip=skip, **numbers_of(seen))

    def _reports(self, watch: _ResumeWatch) -> Reports:
        """Return the reports of the processes of both sides."""
        fold = self._judge.fold
        position = check_position(
            self._batches.positions,
            fold.tree.path(watch.segment),
            None if watch.old is None else fold.tree.path(watch.old),
            watch.fork_step,
            watch.newest,
            watch.declared,
            same_ranks=watch.world_before in (0, self._world),
        )
        if not watch.points:  # the first row decides which process continues
            return Reports(None, False, None, position)
        random = self.reported.random_states(fold.launches.started_with(self._source), watch.fork_step)
        return Reports(self._changes(watch), self._source == watch.process, random, position)

    def _changes(self, watch: _ResumeWatch) -> list[Changed] | None:
        """Return the changes of the environment, None without reports of one side."""
        if self._source == watch.process:
            return []
        fold, reported = self._judge.fold, self.reported
        before, since = (fold.launches.started_with(process) for process in (watch.process, self._source))
        return environment_changes(reported.environments(before), reported.environments(since))

    def _report(self, watch: _ResumeWatch, seen: ForkMeasures | None, resume: Resume, time: float) -> list[Found]:
        if seen is None:
            return []
        denied = resume.not_followed
        wrongs = wrongs_of(seen, resume.verdict, denied)
        newest, found = max(watch.fork_step + 1, watch.newest), []
        over = resume.settled and watch.wrongs > 0
        if len(wrongs) > watch.wrongs or over:
            found.append((time, finding_of(resume, wrongs, newest, over=over)))
        if len(denied) > watch.denied:
            found.append((time, order_finding(resume, self._applied(watch), newest, over=False)))
            self._denied = resume.segment
        elif not denied and watch.denied:
            found += self._superseded(time)  # later rows show that it was followed
        watch.wrongs, watch.denied = max(watch.wrongs, len(wrongs)), max(watch.denied, len(denied))
        return found

    def _superseded(self, time: float) -> list[Found]:
        """Close the finding of the resume before, as another one follows."""
        segment, self._denied = self._denied, None
        told = next((one for one in reversed(self._resumes) if one.segment == segment), None)
        if told is None:
            return []
        newest = max(told.fork_step + 1, self._newest)
        return [(time, order_finding(told, self._applied(told), newest, over=True))]

    def _applied(self, watch: _ResumeWatch | Resume) -> Mapping[str, Any] | None:
        """Return the job's report of its changes: of a commanded rollback, another report follows later."""
        segment = self._judge.fold.tree[watch.segment]
        return segment.applied if segment.fork_step == watch.fork_step else None

    # --- requests of users ---------------------------------------------------------------------------------------

    def view(self) -> Resumes:
        """Return the resumes in API form."""
        return Resumes(self._resumes[::-1], self.determinism(), self._left_out)

    def grades(self) -> dict[int, ResumeGrade]:
        """Return segment -> grade of its resume, of those kept."""
        began = (one for one in reversed(self._resumes))  # one process may go on where another began the segment
        return {one.segment: ResumeGrade(one.verdict, one.grade, one.text, one.settled) for one in began}

    def determinism(self) -> Determinism:
        """Return whether this job is deterministic, by its resumes."""
        for one in reversed(self._resumes):
            if one.exact:
                text = f"deterministic: after step {one.fork_step} it gave {one.points} losses again, bit for bit"
                return Determinism("equal", text)
        for one in reversed(self._resumes):
            again = one.verdict == "same_data" and one.grade == "good" and one.first_difference is not None
            if again and not one.declared and one.world_same and not one.environment:
                text = (
                    f"not deterministic: after step {one.fork_step} the same batches gave other losses from step "
                    f"{one.first_difference} on, by {one.difference:.3g}"
                )
                return Determinism("different", text)
        return Determinism("not_seen", "not known: no resume has trained the same batches again with nothing changed")


def _rows_of(together: Sequence[Placed], run: BranchReader) -> Iterator[tuple[int, float]]:
    """Return step and time of the rows with the loss."""
    for placed in together:
        if any(map(run.is_loss, placed.names)):
            yield from zip(placed.steps.tolist(), placed.times.tolist(), strict=True)


def _other_layout(before: _Layout, now: _Layout) -> str:
    """Return why ids of before a fork and since can't be compared, "" where they can."""
    of, parts, samples = before
    if not of or not now[0]:
        return ""
    if of != now[0]:
        return f"Batch ids are made of {now[0]} now, of {of} before: they can't be compared."
    if of == "text" and parts != now[1]:
        return f"{now[1]} parts make a batch now, {parts} before: batch ids can't be compared."
    if samples != now[2]:
        return f"A batch has {now[2]:,} samples now, {samples:,} before: batch ids can't be compared."
    return ""


def _next(points: int) -> int:
    """Return the number of points of the next comparison: 1, 2, 3, 4, 6, 8, 12, 16, ..."""
    power = 1 << max(0, points.bit_length() - 1)
    return max(points + 1, power + power // 2 if points < power + power // 2 else 2 * power)
