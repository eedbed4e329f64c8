"""``run.data``, ``run.batch`` and ``run.keep_batch``: what a step saw."""

from __future__ import annotations

from time import time

from stabilityclient.arguments import cut, step_of
from stabilityclient.errors import RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stabilityclient.data.recorder import Recorder
    from stabilityclient.data.ring import BatchRing, Explain
    from stabilityclient.guard import Guard
    from stabilityclient.rank_state.phase import Phase
    from stabilityclient.rollback.handler import Restoring
    from stabilityclient.run_components import RunComponents

__all__ = ["DataCalls"]

MAX_FINGERPRINT_CHARS = 200
#: Longest position that is a text, characters.
MAX_POSITION_CHARS = 100
#: Seconds that a rollback, finish() and exit wait for batches that are not hashed yet.
DATA_WAIT_S = 5.0


class DataCalls:
    """The calls of a run that say what a step saw."""

    _guard: Guard
    _components: RunComponents | None
    _recorder: Recorder | None = None
    _ring: BatchRing | None = None
    _restoring: Restoring

    def _event(self, kind: str, step: int | None, data: dict[str, Any]) -> bool:
        raise NotImplementedError

    def phase(self, name: str, expect_s: float | None = None) -> Phase:
        """Return a context manager: inside it this rank is in phase ``name``."""
        raise NotImplementedError

    def batch(self, step: int, fingerprint: object) -> None:
        """Say which data ``step`` saw, e.g. a hash of its sample ids: finds data that is seen twice.

        :meth:`data` makes it from the ids, and finds samples that come again in other batches, too.
        """
        try:
            self._say(step_of(step), time(), {"fingerprint": cut(fingerprint, MAX_FINGERPRINT_CHARS)})
        except Exception as error:
            self._guard.caught("batch()", error)

    def data(
        self,
        step: int,
        *,
        ids: Any = None,
        epoch: float | None = None,
        position: int | str | None = None,
        tokens: int | None = None,
    ) -> None:
        """Say what ``step`` saw on this rank: finds batches and samples that are seen twice, and that are left out.

        Call it on one rank of each data-parallel group: the parts of all ranks are put together. What is on a device is
        not waited for, and hashing is done by another thread.

        Args:
            step: 0 to 2**53 - 1; several calls for one step add up.
            ids: what names each sample: a list of whole numbers or texts, an array or tensor of them, or the batch
                itself, an array or tensor of tokens with a row for each sample (of long rows some tokens are looked
                at). ``{data set: ids}`` where several are mixed.
            epoch: number of the pass over the data. A batch that comes again in another epoch is then no trouble.
            position: where this rank's loader is, as its state says: a number that grows, such as the samples that it
                has handed out, or a text of at most 100 characters. Compared when the job goes on from a checkpoint.
            tokens: how many this rank's part has, where ``ids`` does not show it.
        """
        if self._components is None:
            return
        try:
            now, number = time(), step_of(step)
            facts: dict[str, object] = {}
            if isinstance(position, str):
                if not 1 <= len(position) <= MAX_POSITION_CHARS:
                    what = f"position= is a text of {len(position)} characters"
                    raise RefusedError([f"{what}, expected 1 to {MAX_POSITION_CHARS}, or a number from 0 on"])
                facts["position"], position = cut(position, MAX_POSITION_CHARS), None
            for name, value in (("epoch", epoch), ("position", position), ("tokens", tokens)):
                if value is not None:
                    if not isinstance(value, (int, float) if name == "epoch" else int) or not 0 <= value < 2**53:
                        raise RefusedError([f"{name}= is {value!r:.80}, expected a number from 0 on"])
                    facts[name] = value
            if ids is None:
                self._say(number, now, facts)
                return
            from stabilityclient.data.samples import taken  # jobs that never call it do not pay for it

            if not self._recorder_of().put(number, now, facts, taken(ids)):
                self._guard.note("data()", "batches come quicker than they are hashed: some are dropped")
        except Exception as error:
            self._guard.caught("data()", error)

    def keep_batches(self, explain: Explain, *, last: int = 8, on_spike: bool = False) -> None:
        """Offer that people look at the newest batches; then hand each one to :meth:`keep_batch`.

        What ``explain`` returns is sent to the server and stays there as long as the run: leave out what may not leave
        the job. It is called only when somebody asks, in the training thread between two steps, for 5 s at most if it
        is a generator: without random numbers, gradients and collectives, since other ranks may be elsewhere.

        Args:
            explain: is given a batch as ``keep_batch`` got it and yields for each sample a dict of what is known of
                it: ``id``, ``dataset``, ``loss``, ``text`` (shown as its first and last 1,000 characters), ``shape``,
                and ``tokens``, of which only the number and the share that is repeated are sent.
            last: so many batches are kept alive, 1 to 256.
            on_spike: also when a spike, a divergence or a loss of NaN is found, without anybody asking.
        """
        parts = self._components
        if parts is None:
            return
        try:
            from stabilityclient.data.ring import EXPLAIN_S, MAX_LAST, BatchRing
            from stabilityclient.rollback.command_files import CommandFiles

            if not callable(explain):
                raise RefusedError([f"explain is {explain!r:.80}, expected a function of a batch"])
            if type(last) is not int or not 1 <= last <= MAX_LAST:
                raise RefusedError([f"last is {last!r:.80}, expected a number of batches from 1 to {MAX_LAST}"])
            self._forget_batches()
            files = CommandFiles(parts.folder)
            self._ring = BatchRing(
                explain, last, files, self._event, self._restoring.report,
                lambda: self.phase("explain_batches", 2 * EXPLAIN_S),
                (lambda text: self._guard.note("keep_batches()", text)) if on_spike else None,
            )  # fmt: skip
            parts.boundary.keeps_batches = True
            self._event("keeps_batches", None, {"last": last, "on_spike": bool(on_spike)})
        except Exception as error:
            self._guard.caught("keep_batches()", error)

    def keep_batch(self, step: int, batch: object) -> None:
        """Keep a batch for :meth:`keep_batches`, a reference and no copy, and answer who asked meanwhile.

        Args:
            step: that it is for; call it once a step, from the thread that trains.
            batch: anything: ``explain`` gets it. Best on the CPU, and nothing that is written over by the next step.
                The losses of its samples may be in it: asked later, they would be those of later weights.
        """
        ring = self._ring
        if ring is None:
            return
        try:
            ring.put(step, batch)
        except Exception as error:
            self._guard.caught("keep_batch()", error)

    def _forget_batches(self) -> None:
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    def _recorder_of(self) -> Recorder:
        if self._recorder is None:
            from stabilityclient.data.recorder import Recorder

            self._recorder = Recorder(
                self._say, lambda error: self._guard.note("data()", f"a batch was refused: {error}")
            )
        return self._recorder

    def _say(self, step: int, when: float, data: dict[str, object]) -> None:
        parts = self._components
        if parts is not None:
            parts.spool.append_event("batch", step, when, data)

    def _drain_data(self, to_step: int | None = None) -> None:
        """Wait for what is not hashed yet; the job goes back to ``to_step``, or ends (None)."""
        if self._recorder is not None:
            self._recorder.drain(DATA_WAIT_S)
        if self._ring is not None and to_step is not None:
            self._ring.went_back(to_step)
