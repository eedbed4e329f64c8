"""The run as the training script sees it. Calls are cheap, wait for no network and raise no trouble of ours."""

from __future__ import annotations

import os
import struct
from time import time

from stabilityclient import hooks
from stabilityclient.arguments import MAX_STEP, cut, cut_inside, gist, not_a_mapping, step_of, trace_of
from stabilityclient.data.calls import DataCalls
from stabilityclient.declarations import Declarations
from stabilityclient.errors import RefusedError
from stabilityclient.metrics.metric_coercion import MetricCoercion
from stabilityclient.metrics.values import Types
from stabilityclient.rank_state.phase import Phase
from stabilityclient.rank_state.slot import STATE_EXCEPTION, STATE_FINISHED, STATE_LEFT
from stabilityclient.rollback.handler import Restoring
from stabilityclient.rollback.lineage import RankLineage
from stabilityclient.skipping import SkipCalls
from stabilityclient.step_calls import StepCalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Any

    from stabilityclient.guard import Guard
    from stabilityclient.rank_state.slot import Slot
    from stabilityclient.run_components import RunComponents
    from stabilityclient.settings import ClientSettings

__all__ = ["Run"]

#: Longest text of an alert or a reason, characters. Longer ones are cut, with a mark.
MAX_TEXT_CHARS = 10_000
MAX_TITLE_CHARS = 300

_FORKED = (
    "this process was forked after init(), and nothing that it logs is recorded: log in the process that called "
    "init(), or start this one by the method spawn and call init() in it"
)
_SEVERITIES = ("info", "warning", "critical")


class Run(DataCalls, Declarations, StepCalls, SkipCalls):
    """One training run, seen from one rank. Made by :func:`stabilityclient.init`.

    Attributes:
        run_id: id of the run, the same on all ranks.
        folder: where this node keeps the run's spool; None when disabled.
    """

    def __init__(self, settings: ClientSettings, guard: Guard) -> None:
        self.run_id = settings.run_id
        self.folder: str | None = None
        self._settings = settings
        self._guard = guard
        self._components: RunComponents | None = None
        self._outcome = "disabled"
        # Bound once: the hot path looks nothing up that it does not need.
        self._all_quick = Types().plain.issuperset
        self._append: Callable[..., bool] | None = None
        self._sort: Callable[[int, float, Mapping[str, Any]], None] = _ignore
        self._coercion: MetricCoercion | None = None
        self._finished = False
        self._preempted = ""
        #: In a forked child: the slot of the process that was forked.
        self._parents_slot: Slot | None = None
        #: Step of the newest log() and its unix seconds; the heartbeat thread reads them.
        self.logged_step = -1
        self.logged_at = 0.0
        self._lineage = RankLineage(self._event)
        self._restoring = Restoring(self._event, self._guard)

    @property
    def url(self) -> str:
        """The address of the run's page."""
        return f"{self._settings.url}/runs/{self.run_id}"

    # --- data ----------------------------------------------------------------------------------------------------

    def log(self, step: int, metrics: Mapping[str, Any] | None = None) -> None:
        """Store the metrics of one step.

        Numbers, NumPy scalars and tensors of one element are welcome; a tensor on a device is copied there and read
        later by another thread, so that the training thread never waits for it. NaN and infinities are stored as what
        they are.

        Args:
            step: 0 to 2**53 - 1.
            metrics: names of at most 200 characters, and their values; a mapping among these is stored as
                ``outer/inner``. What can't be stored is refused (raised under pytest, else logged, each kind once a
                minute, and counted on the run's page); the rest of the call is stored.
        """
        append = self._append
        if append is None:
            self._log_unrecorded()
            return
        try:
            now = time()
            values = metrics.values()  # type: ignore[union-attr]
            if type(step) is not int or not 0 <= step <= MAX_STEP:
                step = step_of(step)
            if self._all_quick(map(type, values)):
                try:
                    append(tuple(metrics), step, now, values)  # type: ignore[arg-type]
                except (ValueError, OverflowError, struct.error):
                    self._sort(step, now, metrics)  # type: ignore[arg-type]
            else:
                self._sort(step, now, metrics)  # type: ignore[arg-type]
            if step != self.logged_step:
                # The heartbeat thread brings it to the slot within a second: a write here would be a quarter of the
                # call.
                self.logged_step = step
                self.logged_at = now
        except Exception as error:
            mapping = callable(getattr(metrics, "values", None))
            self._guard.caught("log()", error if mapping else not_a_mapping(step, metrics))

    def alert(self, title: str, text: str = "", severity: str = "warning") -> None:
        """Notify people of something. ``severity``: ``info``, ``warning`` or ``critical``."""
        try:
            if severity not in _SEVERITIES:
                raise RefusedError([f"severity is {severity!r}, expected one of {', '.join(_SEVERITIES)}"])
            data = {"title": cut(title, MAX_TITLE_CHARS), "text": cut(text, MAX_TEXT_CHARS), "severity": severity}
            self._event("alert", self._current_step(), data)
        except Exception as error:
            self._guard.caught("alert()", error)

    def phase(self, name: str, expect_s: float | None = None) -> Phase:
        """Return a context manager: inside it this rank is in phase ``name``.

        Args:
            name: ``data``, ``forward``, ``backward``, ``optimizer``, ``checkpoint``, ``eval``, ``compile`` or any
            other.
            expect_s: how long it may take, seconds; a longer one is then called a hang.
        """
        parts = self._components
        return Phase(None if parts is None else parts.slot, self._guard, name, expect_s)

    def preempted(self, by: str = "the job") -> None:
        """Say that this process ends before its time because it was asked to, and is to be started again.

        Its run is then "preempted", not "finished", and the interruption is counted. A process whose Python handler ran
        for SIGTERM, or for SIGUSR1 and SIGUSR2 below Slurm, and that ends within 15 minutes needs no call.

        Args:
            by: who or what asked, in a few words.
        """
        self._preempted = cut(by, MAX_TITLE_CHARS) or "the job"

    # --- end -----------------------------------------------------------------------------------------------------

    def finish(self, timeout_s: float | None = None) -> str:
        """End the run and return when all is delivered, or spooled if the server is away.

        Args:
            timeout_s: longest wait for the delivery, seconds; default 30 (``STABILITY_FINISH_S``).

        Returns:
            ``delivered``: the server confirmed every record of this rank. ``spooled``: they are on disk; the agent
            goes on trying for ten minutes, and ``stabilityboard import FOLDER`` delivers them later.
            ``lost``: the spool was deleted before that. ``disabled``: nothing was recorded.
        """
        parts = self._components
        if parts is None:
            return self._outcome
        self._end_steps("the job finished")
        try:
            self._drain_device_values()
            self._append = None
            self._finished = True
            parts.heartbeat.say_once()
            by = self._asked_to_end()
            parts.spool.append_event(
                "preempted" if by else "finish", self._current_step(), time(), {"by": by} if by else {}
            )
            parts.heartbeat.publish()
            parts.slot.set_state(STATE_FINISHED)
            self._outcome = "spooled"
            if parts.sidecar is not None:
                wait_s = self._settings.finish_s if timeout_s is None else timeout_s
                left = parts.sidecar.await_delivery(parts.source, parts.spool.last_seq, wait_s)
                if left and not os.path.isdir(os.path.join(parts.folder, "sources", parts.source)):
                    self._outcome = "lost"
                    gone = f"the spool {parts.folder} was deleted"
                    self._guard.note("finish()", f"{left} records were not delivered and are lost: {gone}")
                elif left:
                    died = parts.sidecar.trouble()
                    why = f"; {died}" if died else ""
                    self._guard.note(
                        "finish()", f"{left} records are not delivered yet, they are in {parts.folder}{why}"
                    )
                else:
                    self._outcome = "delivered"
        except Exception as error:
            self._guard.caught("finish()", error)
        finally:
            self._close(parts)
        return self._outcome

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, SystemExit):
            self._on_exception(error)
            self._on_exit()
        else:
            self.finish()

    def _close(self, parts: RunComponents) -> None:
        self._components = self._append = None
        hooks.unwatch(self)
        try:
            self._forget_batches()
            parts.heartbeat.stop()
            parts.spool.close()
            parts.slot.close()
            parts.stack_file.close()
            parts.boundary.close()
            parts.probe.close()
            if parts.sidecar is not None:
                parts.sidecar.forget()
        except Exception as error:
            self._guard.caught("finish()", error)

    # --- inside --------------------------------------------------------------------------------------------------

    def _open(self, parts: RunComponents) -> None:
        """Become enabled; called once by ``init()``."""
        self._components = parts
        self._guard.on_refused = lambda text: self._event("refused", None, {"text": text})
        self._append = parts.spool.append_row
        self._coercion = MetricCoercion(parts.spool, parts.heartbeat, self._guard)
        self._sort = self._coercion.sort
        self._lineage.attach(parts.boundary, parts.slot)
        self.folder = parts.folder
        hooks.watch(self)
        self._event("start", None, {"says_orders": True})
        parts.heartbeat.once = parts.environment

    def _asked_to_end(self) -> str:
        parts = self._components
        return self._preempted or ("" if parts is None else parts.end_signals.asked())

    def _log_unrecorded(self) -> None:
        """Say once a minute that this call stores nothing; a run that is disabled on purpose says nothing."""
        if self._finished:
            self._guard.caught("log()", RefusedError(["log() came after finish()"]))
        elif self._parents_slot is not None:
            self._guard.note("log()", _FORKED)
            slot, self._parents_slot = self._parents_slot, None
            try:
                slot.say_forked()
            except OSError:
                self._guard.swallowed += 1

    def _event(self, kind: str, step: int | None, data: dict[str, Any]) -> bool:
        parts = self._components
        return parts is not None and parts.spool.append_event(kind, step, time(), data)

    def _current_step(self) -> int | None:
        parts = self._components
        if parts is None:
            return None
        parts.heartbeat.publish()
        return parts.slot.step if parts.slot.step >= 0 else None

    def _drain_device_values(self, to_step: int | None = None) -> None:
        self._drain_data(to_step)
        if self._coercion is not None:
            self._coercion.drain()

    # --- hooks ---------------------------------------------------------------------------------------------------

    def _on_exception(self, error: BaseException) -> None:
        """An uncaught exception ends the process: say so, in the spool and in the slot."""
        parts = self._components
        if parts is None:
            return
        try:
            kind, text = type(error).__name__, cut_inside(str(error), MAX_TEXT_CHARS)
            data = {"type": kind, "message": text, "traceback": trace_of(error)}
            by = self._asked_to_end()
            if by:
                data["preempted"] = by
            self._end_steps(f"the job ended by {kind}: {gist(text)}")
            self._event("exception", self._current_step(), data)
            parts.heartbeat.publish()
            parts.slot.set_state(STATE_EXCEPTION, f"{kind}: {gist(text)}")
            self._outcome = "exception"
        except Exception:  # the process is ending with the user's exception: ours must not cover it
            self._guard.swallowed += 1

    def _on_exit(self) -> None:
        """The process ends without finish()."""
        parts = self._components
        if parts is None:
            return
        try:
            self._end_steps("the process ended")
            self._drain_device_values()
            if self._outcome != "exception":
                by = self._asked_to_end()
                if by:
                    self._event("preempted", self._current_step(), {"by": by})
            parts.heartbeat.publish()
            if self._outcome != "exception":
                parts.slot.set_state(STATE_LEFT)
        except Exception:
            self._guard.swallowed += 1
        finally:
            self._close(parts)

    def _on_fork(self) -> None:
        """This is a forked child: the files belong to the parent."""
        if self._components is not None:
            self._parents_slot = self._components.slot
            self._parents_slot.close()  # in this process only
        self._components = self._append = None
        self._coercion = self._recorder = self._ring = None  # their threads stayed in the parent: nothing to wait for
        self._outcome = "disabled"


def _ignore(step: int, now: float, metrics: Mapping[str, Any]) -> None:
    """Stand in for the metric coercion of a run that is not open."""
