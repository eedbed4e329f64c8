"""``run.data`` and ``run.batch``: what a step saw."""

from __future__ import annotations

from time import time

from stabilityclient.arguments import cut, step_of
from stabilityclient.errors import RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stabilityclient.data.recorder import Recorder
    from stabilityclient.guard import Guard
    from stabilityclient.run_components import RunComponents

__all__ = ["DataCalls"]

MAX_FINGERPRINT_CHARS = 200
#: Seconds that a rollback, finish() and exit wait for batches that are not hashed yet.
DATA_WAIT_S = 5.0


class DataCalls:
    """The calls of a run that say what a step saw."""

    _guard: Guard
    _components: RunComponents | None
    _recorder: Recorder | None = None

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
        position: int | None = None,
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
            position: samples that this rank's loader has handed out, as its state says.
            tokens: how many this rank's part has, where ``ids`` does not show it.
        """
        if self._components is None:
            return
        try:
            now, number = time(), step_of(step)
            facts: dict[str, object] = {}
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

    def _drain_data(self) -> None:
        if self._recorder is not None:
            self._recorder.drain(DATA_WAIT_S)
