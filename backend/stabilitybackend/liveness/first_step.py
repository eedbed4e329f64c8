"""Tells a first step that is stuck from one that is long, well before its budget (600 s) is over.

A first step compiles, fills caches and builds extensions: for minutes nobody knows how long it may take. But where no
rank moves, no main thread uses the processor and the stacks of two looks are the same, nothing is being made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stabilitybackend.liveness.dumps import DUMP_WAIT_S, DumpBook, DumpRequest, Stack
from stabilitybackend.liveness.rank_watch import RankWatch, number
from stabilitybackend.liveness.scene import Scene
from stabilitybackend.liveness.stack_text import DEPTH, Frame, in_long_work

__all__ = ["FirstStep"]

#: Stacks are looked at when nobody has moved for so long, and again so long after the first look was asked for,
#: seconds: with the time that an answer may take the hang is told within 120 s.
FIRST_LOOK_S = 40.0
SECOND_LOOK_S = 40.0
#: Rounds of two looks at one standstill: each of them disturbs the job a little.
MAX_ROUNDS = 4
#: Share of a core from which a main thread does something.
USES_CPU = 0.1

#: Frames of compilers, of a child process that is waited for, and of downloads: the work is where we do not look.
_WORKS_ELSEWHERE = re.compile(
    r"/torch/(_dynamo|_inductor|_functorch|utils/cpp_extension\.py|jit)|/triton/|/tensorrt|/jax/|/numba/|/subprocess\.py$"
    r"|/ssl\.py$|/urllib3/|/http/client\.py$|/huggingface_hub/|/botocore/|/fsspec/"
)
#: Innermost frames of a wait for a lock file: its holder may be long gone.
_LOCKS = re.compile(r"/file_baton\.py$|/filelock/")
#: Frames, from the innermost, in which a wait for a lock file shows.
_LOCK_DEPTH = 3


class FirstStep:
    """The looks at one standstill before the end of the first step.

    Args:
        run_id: of the run; part of a look's id.
        dumps: where the agents' answers are.
    """

    def __init__(self, run_id: str, dumps: DumpBook) -> None:
        self._run_id = run_id
        self._dumps = dumps
        self._wanted: list[DumpRequest] = []
        self._forget(frozenset())

    def _forget(self, place: frozenset[tuple[str, int, str]]) -> None:
        self._place, self._rounds = place, 0
        self._request, self._asked_at = "", 0.0
        self._before: dict[int, tuple[Frame, ...]] = {}
        self._used: set[int] = set()
        self._stuck = False

    def wants(self) -> list[DumpRequest]:
        """Return the dumps to order, once each."""
        wanted, self._wanted = self._wanted, []
        return wanted

    @staticmethod
    def concerns(visible: Sequence[RankWatch]) -> bool:
        """Say whether all ranks stand before the end of their first step, in no phase that may be long."""
        return bool(visible) and all(
            not watch.first_step_done and not watch.in_long_phase and watch.stood_s >= FIRST_LOOK_S for watch in visible
        )

    def stuck(self, scene: Scene, now: float) -> bool:
        """Say whether the job is stuck there; asks for stacks where they would tell.

        Args:
            scene: the job as it is seen, of which ``concerns`` holds.
            now: unix seconds.
        """
        place = frozenset((watch.source, watch.step, watch.phase) for watch in scene.visible)
        if place != self._place:
            self._forget(place)
        if scene.unseen or scene.absent or scene.over:
            return False  # who is not seen may be at work; who has not come is told when the budget is over
        self._used |= {watch.rank for watch in scene.visible if number(watch.proc.get("cpu")) >= USES_CPU}
        if self._stuck or self._rounds >= MAX_ROUNDS:
            return self._stuck
        dump = self._dumps.dump(self._request) if self._request else None
        waited = now - self._asked_at
        if not self._request:
            self._ask(scene, now)
        elif dump is None or not (dump.complete or waited >= DUMP_WAIT_S):
            if waited >= SECOND_LOOK_S:
                self._ask(scene, now)  # nobody answered
        elif not self._before:
            if waited >= SECOND_LOOK_S:
                self._before = {rank: one.frames for rank in dump.looks if (one := dump.stack_of(rank)) is not None}
                self._ask(scene, now)
        else:
            self._stuck = all(self._stands(watch, dump.stack_of(watch.rank), scene) for watch in scene.visible)
            self._rounds += 1
            self._request, self._before, self._used = "", {}, set()
        return self._stuck

    def _stands(self, watch: RankWatch, stack: Stack | None, scene: Scene) -> bool:
        """Say whether a rank does nothing, by two stacks and the processor."""
        if stack is None or self._before.get(watch.rank) != stack.frames or scene.waits_for_disk(watch):
            return False
        # A main thread that waits for a GPU or for others may spin.
        if watch.rank in self._used and stack.where != "collective":
            return False
        if any(_LOCKS.search(frame.file) for frame in stack.frames[:_LOCK_DEPTH]):
            return True
        if stack.where in ("data", "checkpoint") or in_long_work(stack.frames, stack.where, outside=False):
            return False  # workers may fetch and decode where we do not look
        return not any(_WORKS_ELSEWHERE.search(frame.file) for frame in stack.frames[:DEPTH])

    def _ask(self, scene: Scene, now: float) -> None:
        self._request = self._dumps.request_id(self._run_id, "first step", now)
        self._asked_at = now
        want = DumpRequest(self._request, "no rank moves in its first step: does it compile, or does it hang?")
        self._wanted.append(want)
        self._dumps.ask(want, scene.running, now)
