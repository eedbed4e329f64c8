"""Keeps the last batches of a rank, and on command has the job's own callable explain them. Nothing is computed before.

References are kept: the batches stay in memory as long as the ring holds them. An order is read where the next
batch is handed in, so the callable runs in the training thread between two steps, bounded in time as far as a generator
that is asked for one sample after the other can be.
"""

from __future__ import annotations

import json
import time
from collections import deque

from stabilityclient.arguments import cut_inside, step_of
from stabilityclient.data.explained import explained, worst_first
from stabilityclient.rollback.decision import SHOW_BATCHES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    from stabilityclient.data.explained import ExplainedBatch
    from stabilityclient.rollback.command_files import CommandFiles

    Explain = Callable[[Any], Iterable[Mapping[str, Any]]]

__all__ = ["EXPLAIN_S", "MAX_LAST", "BatchRing"]

#: Batches that a ring may hold.
MAX_LAST = 256
#: Seconds after which no further sample is asked for; the other ranks wait in their collectives meanwhile.
EXPLAIN_S = 5.0
#: Samples of one answer and characters of each text, where the order names fewer or none.
MAX_SAMPLES = 64
MAX_CHARS = 2_000
#: Bytes of JSON of one answer: a spool takes 256 KiB.
ANSWER_BYTES = 128 * 1024
#: A spike is found so many steps after it, and its order is read so many seconds later; the ring must hold its batch
#: until then. Measured with a server on the same machine: a jump of the loss is answered 6 steps later at 0.1 and 0.5 s
#: a step, 11 at 10 ms; a NaN at the next one.
FOUND_STEPS, ORDER_S = 7, 0.5
#: The pace of the job is taken between these batches: the first steps compile and warm up.
PACE_FROM, PACE_TO = 32, 64
#: Texts are not cut shorter than this for that, characters; then samples are left out.
LEAST_CHARS = 100


class _Kept:
    """One batch that is held; ``discarded``: the job went back to before its step since."""

    __slots__ = ("batch", "discarded", "step", "time")

    def __init__(self, step: int, when: float, batch: object) -> None:
        self.step, self.time, self.batch, self.discarded = step, when, batch, False


class BatchRing:
    """The last batches of one rank.

    Args:
        explain: the job's callable: batch -> a mapping for each sample (``explained.FIELDS``).
        last: batches that are held.
        commands: of this rank. event: logs an event (kind, step, data) and returns whether there was room.
        report: logs how far a command is: ``report(command, state, detail, step)``.
        phase: makes the phase declared while the callable runs.
        warn: takes a text where the ring is too small for orders that the server gives by itself; None: it gives none.
    """

    def __init__(
        self,
        explain: Explain,
        last: int,
        commands: CommandFiles,
        event: Callable[[str, int | None, dict[str, Any]], bool],
        report: Callable[[Mapping[str, Any], str, str, int], None],
        phase: Callable[[], AbstractContextManager[object]],
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._explain = explain
        self._kept: deque[_Kept] = deque(maxlen=last)
        self._commands = commands
        self._event = event
        self._report = report
        self._phase = phase
        self._warn = warn
        self._puts = 0
        self._paced = 0.0

    def put(self, step: int, batch: object) -> None:
        """Hold a batch, and let go of the oldest one; then answer the orders."""
        if type(step) is not int or step < 0:
            step = step_of(step)
        self._kept.append(_Kept(step, time.time(), batch))
        if self._puts < PACE_TO:
            self._puts += 1
            self._check_size()
        for command in self._commands.new():
            if command.get("kind") == SHOW_BATCHES:
                self._answer(command, step)

    def _check_size(self) -> None:
        """Warn once, where the job makes more batches than the ring holds until a command can come."""
        now = self._kept[-1].time
        if self._puts == PACE_FROM:
            self._paced = now
        if self._puts < PACE_TO or self._warn is None:
            return
        step_s = max(1e-4, (now - self._paced) / (PACE_TO - PACE_FROM))
        last, need = self._kept.maxlen or 0, FOUND_STEPS + -int(-ORDER_S // step_s)
        if last < need:
            enough = f"last={min(need, MAX_LAST)}" + (" is the most" if need > MAX_LAST else " is enough")
            self._warn(
                f"last={last} holds {last * step_s:.2g} s of this job: when a spike is found and its order is here, "
                f"its batch may have left; {enough}"
            )

    def went_back(self, to_step: int) -> None:
        """Mark batches after ``to_step``, to which the job went back: on no path any more, but of interest."""
        for kept in self._kept:
            kept.discarded |= kept.step > to_step

    def close(self) -> None:
        """Let go of the batches and of the mailbox."""
        self._kept.clear()
        self._commands.close()

    def _answer(self, command: Mapping[str, Any], step: int) -> None:
        expires = command.get("expires")
        if expires is not None and time.time() + float(command.get("clock_offset_s") or 0.0) > float(expires):
            self._report(command, "rejected", "read after it had expired", step)
            return
        try:
            data = self._looked_at(command)
            stored = self._event("batch_samples", step, data)
        except Exception as error:  # with any content of the command: the answer has the error, and training continues
            self._report(command, "failed", f"{type(error).__name__}: {error}"[:1_000], step)
            return
        if not stored:  # this short line may find the room that the samples did not
            self._report(command, "failed", "its samples found no room: the disk is full, or the spool's limit", step)
            return
        looked_at = [one["samples"] for one in data["steps"] if "samples" in one]
        detail = f"{sum(looked_at)} samples of {len(looked_at)} batches in {data['seconds']:.1f} s"
        # After a rollback the lowest step is not the first one.
        around, oldest = command.get("step"), min(kept.step for kept in self._kept)
        if isinstance(around, int) and around < oldest:
            detail += f"; the batch of step {around} had left, the oldest one held is of step {oldest}"
        if data["error"]:
            detail += f"; the job's callable raised {data['error']}"
        self._report(command, "acted" if any(looked_at) or not data["error"] else "failed", detail, step)

    def _looked_at(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data of a ``batch_samples`` event (docs/wire.md)."""
        keep = _within(command.get("samples"), MAX_SAMPLES)
        chars = _within(command.get("text_chars"), MAX_CHARS)
        around = command.get("step")
        target = around if isinstance(around, int) else self._kept[-1].step
        # The nearest first: time may end before all were looked at.
        order = sorted(self._kept, key=lambda kept: (abs(kept.step - target), -kept.time))
        began = now = time.monotonic()
        end = began + EXPLAIN_S
        found: list[tuple[_Kept, ExplainedBatch]] = []
        with self._phase():
            for kept in order:
                if found and now >= end:
                    break
                # Each may take half of the time that is left: the neighbours of a large batch are of interest, too.
                half = now + (end - now) / 2
                batch = explained(kept.batch, self._explain, keep=keep, chars=chars, deadline=half)
                found.append((kept, batch))
                now = time.monotonic()
        facts = {id(kept): batch.facts() for kept, batch in found}
        data = {
            "command_id": command["command_id"],
            "last": self._kept.maxlen,
            "steps": [_shown(kept, facts.get(id(kept), {})) for kept in self._kept],
            "samples": _chosen(found, keep),
            "seconds": round(time.monotonic() - began, 3),
            "error": next((f"{batch.error} (step {kept.step})" for kept, batch in found if batch.error), ""),
        }
        return _fitted(data)


def _shown(kept: _Kept, facts: Mapping[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {"step": kept.step, "time": kept.time, **facts}
    if kept.discarded:
        shown["discarded"] = True
    return shown


def _within(given: object, most: int) -> int:
    return min(given, most) if isinstance(given, int) and given > 0 else most


def _chosen(found: list[tuple[_Kept, ExplainedBatch]], most: int) -> list[dict[str, Any]]:
    """Return at most ``most`` samples, the worst of each batch before the second of any, then the worst first."""
    chosen: list[dict[str, Any]] = []
    for place in range(most):
        for kept, batch in found:
            if place < len(batch.samples) and len(chosen) < most:
                chosen.append({"step": kept.step, **batch.samples[place]})
    return worst_first(chosen)


def _fitted(data: dict[str, Any]) -> dict[str, Any]:
    """Cut texts, then leave out the least bad samples, until an answer has at most ANSWER_BYTES."""
    samples = data["samples"]
    while samples and len(json.dumps(data)) > ANSWER_BYTES:
        longest = max(len(sample.get("text", "")) for sample in samples)
        if longest <= LEAST_CHARS:
            del samples[-1 - len(samples) // 4 :]
            continue
        for sample in samples:
            if "text" in sample:
                sample["text"] = cut_inside(sample["text"], max(LEAST_CHARS, longest // 2))
    return data
