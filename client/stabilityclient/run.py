"""The run as the training script sees it. Every call is cheap, never waits for a network and never raises trouble of ours."""

from __future__ import annotations

import os
import struct
import time as _time
from _operator import index  # the same as operator.index, without the module's import time
from time import time

from stabilityclient import hooks
from stabilityclient.arbiter import FileArbiter, TorchStoreArbiter, find_store
from stabilityclient.errors import NotReadyError, RefusedError
from stabilityclient.rollback import Rollback
from stabilityclient.slot import STATE_EXCEPTION, STATE_FINISHED, STATE_LEFT
from stabilityclient.spool import MAX_SET_NAMES, name_trouble
from stabilityclient.values import as_float, is_plain_scalar, on_device, quick_types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Any, TypeVar

    from stabilityclient.arbiter import Arbiter
    from stabilityclient.boundary import Boundary
    from stabilityclient.guard import Guard
    from stabilityclient.heart import Heart
    from stabilityclient.settings import Settings
    from stabilityclient.sidecar import Sidecar
    from stabilityclient.slot import Slot
    from stabilityclient.spool import SpoolWriter
    from stabilityclient.values import Deferred

    Handler = TypeVar("Handler", bound=Callable[[Rollback], object])

__all__ = ["Parts", "Run"]

#: Largest step: what a browser's double still holds exactly. The same number as in wire.py.
MAX_STEP = 2**53 - 1
#: Longest text of an alert or a reason, characters. Longer ones are cut, with a mark.
MAX_TEXT_CHARS = 10_000
MAX_TITLE_CHARS = 300
MAX_FINGERPRINT_CHARS = 200
MAX_PATH_CHARS = 4_096
#: Types of scalars that are packed as they are; NumPy has about a dozen.
MAX_QUICK_TYPES = 64
#: Seconds that finish() and exit wait for values that still live on a device.
DEVICE_WAIT_S = 5.0
#: finish() does not wait out its time for a server that the agent has not reached for so long, seconds.
AWAY_S = 5.0
#: The same for a server that refused the data for good: long enough for a new agent to say that it is otherwise.
REFUSED_S = 1.0

_SEVERITIES = ("info", "warning", "critical")


class Parts:
    """What an enabled run holds. Plain data, made by ``init()``."""

    __slots__ = ("boundary", "folder", "heart", "sidecar", "slot", "source", "spool")

    boundary: Boundary
    folder: str
    heart: Heart
    sidecar: Sidecar | None
    slot: Slot
    source: str
    spool: SpoolWriter


class Run:
    """One training run, seen from one rank. Made by :func:`stabilityclient.init`.

    Attributes:
        run_id: id of the run, the same on all ranks.
        folder: where this node keeps the run's spool; None when disabled.
    """

    def __init__(self, settings: Settings, guard: Guard) -> None:
        self.run_id = settings.run_id
        self.folder: str | None = None
        self._settings = settings
        self._guard = guard
        self._parts: Parts | None = None
        self._outcome = "disabled"
        self._quick = quick_types()
        # Bound once: the hot path looks nothing up that it does not need.
        self._all_quick = self._quick.issuperset
        self._append: Callable[..., bool] | None = None
        self._finished = False
        #: Step of the newest log() and its unix seconds; the heart reads them.
        self.logged_step = -1
        self.logged_at = 0.0
        self._deferred: Deferred | None = None
        self._handler: Callable[[Rollback], object] | None = None
        self._segment_key = ""
        self._declared = 0

    # --- data ----------------------------------------------------------------------------------------------------

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Store the metrics of one step.

        Numbers, NumPy scalars and tensors of one element are welcome; a tensor on a device is copied there and read later
        by another thread, so that the training thread never waits for it. NaN and infinities are stored as what they are.

        Args:
            step: 0 to 2**53 - 1.
            metrics: names of at most 200 characters, and their values. What can't be stored is refused (raised under
                pytest, else logged once a minute and counted); the rest of the call is stored.
        """
        append = self._append
        if append is None:
            if self._finished:
                self._guard.caught("log()", RefusedError(["log() came after finish()"]))
            return
        try:
            now = time()
            values = metrics.values()
            if type(step) is not int or not 0 <= step <= MAX_STEP:
                step = _step(step)
            if self._all_quick(map(type, values)):
                try:
                    append(tuple(metrics), step, now, values)
                except (ValueError, OverflowError, struct.error):
                    self._sort(step, now, metrics)
            else:
                self._sort(step, now, metrics)
            if step != self.logged_step:
                # The heart brings it to the slot within a second: a write here would be a quarter of the call.
                self.logged_step = step
                self.logged_at = now
        except Exception as error:
            self._guard.caught("log()", error)

    def checkpoint(self, step: int, path: str | os.PathLike[str]) -> None:
        """Say that the state after ``step`` is saved at ``path``: a place to roll back to."""
        try:
            text = os.fspath(path)
            if not isinstance(text, str) or not 1 <= len(text) <= MAX_PATH_CHARS:
                raise RefusedError(
                    [f"checkpoint path is {path!r:.80}, expected a path of 1 to {MAX_PATH_CHARS} characters"]
                )
            self._event("checkpoint", _step(step), {"path": text if "://" in text else os.path.abspath(text)})
        except Exception as error:
            self._guard.caught("checkpoint()", error)

    def batch(self, step: int, fingerprint: object) -> None:
        """Say which data ``step`` saw, e.g. a hash of its sample ids: finds data that is seen twice."""
        try:
            self._event("batch", _step(step), {"fingerprint": str(fingerprint)[:MAX_FINGERPRINT_CHARS]})
        except Exception as error:
            self._guard.caught("batch()", error)

    def alert(self, title: str, text: str = "", severity: str = "warning") -> None:
        """Tell people something. ``severity``: ``info``, ``warning`` or ``critical``."""
        try:
            if severity not in _SEVERITIES:
                raise RefusedError([f"severity is {severity!r}, expected one of {', '.join(_SEVERITIES)}"])
            data = {"title": _cut(title, MAX_TITLE_CHARS), "text": _cut(text, MAX_TEXT_CHARS), "severity": severity}
            self._event("alert", self._current_step(), data)
        except Exception as error:
            self._guard.caught("alert()", error)

    def phase(self, name: str, expect_s: float | None = None) -> _Phase:
        """Return a context manager: inside it this rank is in phase ``name``.

        Args:
            name: ``data``, ``forward``, ``backward``, ``optimizer``, ``checkpoint``, ``eval``, ``compile`` or any other.
            expect_s: how long it may take, seconds; a longer stand is then called a hang.
        """
        return _Phase(self, name, expect_s)

    # --- steps and rollback --------------------------------------------------------------------------------------

    def on_rollback(self, handler: Handler) -> Handler:
        """Register the function that restores the job's state; it gets a :class:`Rollback`. Use as a decorator."""
        self._handler = handler
        if self._parts is not None:
            self._parts.boundary.has_handler = True
        return handler

    def steps(self, start: int, stop: int | None = None) -> Iterator[int]:
        """Yield ``start``, ``start + 1``, ... before ``stop``, and obey the commands that people send in between.

        On a rollback on which all ranks agreed, the handler of ``@run.on_rollback`` is called on every rank at the same
        step boundary, and the steps go on from ``to_step + 1``. On an ordered stop the loop ends.

        Raises:
            Exception: what the handler raises; the command is reported as failed.
        """
        step = index(start)
        end = None if stop is None else index(stop)
        if self._parts is not None:
            self._parts.heart.stepping = True
        try:
            while end is None or step < end:
                command = self._boundary(step, end)
                if command is not None:
                    if command["kind"] == "stop":
                        self._say(command, "acted", f"stopped before step {step}", step)
                        return
                    step = self._roll_back(command, step)
                    continue
                self._begin_step(step)
                yield step
                step += 1
        finally:
            self._leave(step)

    def rolled_back(self, to_step: int, reason: str = "", **changes: Any) -> None:
        """Say that the job went back by itself: points after ``to_step`` so far are dead, the next ones are a new segment.

        Args:
            to_step: step whose state was restored; the next point belongs to ``to_step + 1``.
            reason: why, in words.
            changes: what is different now, e.g. ``lr_scale=0.5``. Call it on all ranks in the same order.
        """
        try:
            import hashlib

            to_step = _step(to_step)
            self._declared += 1
            text = f"{self._segment_key}\n{self._declared}\n{to_step}"
            key = "d-" + hashlib.sha256(text.encode()).hexdigest()[:16]
            self._enter_segment(key, to_step, "declared", _cut(reason, MAX_TEXT_CHARS), None, "", changes)
        except Exception as error:
            self._guard.caught("rolled_back()", error)

    # --- end -----------------------------------------------------------------------------------------------------

    def finish(self, timeout_s: float | None = None) -> str:
        """End the run and return when all is delivered, or spooled if the server is away.

        Args:
            timeout_s: longest wait for the delivery, seconds; default 30 (``STABILITY_FINISH_S``).

        Returns:
            ``delivered``: the server confirmed every record of this rank. ``spooled``: they are on disk; the agent goes on
            trying for ten minutes, and ``stabilityboard import FOLDER`` delivers them later. ``disabled``: nothing was recorded.
        """
        parts = self._parts
        if parts is None:
            return self._outcome
        try:
            if self._deferred is not None:
                self._deferred.drain(_time.monotonic() + DEVICE_WAIT_S, _time.monotonic, _time.sleep)
            self._append = None
            self._finished = True
            parts.spool.append_event("finish", self._current_step(), time(), {})
            parts.heart.publish()
            parts.slot.set_state(STATE_FINISHED)
            self._outcome = "spooled"
            self._outcome = self._await_delivery(parts, self._settings.finish_s if timeout_s is None else timeout_s)
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

    def _await_delivery(self, parts: Parts, timeout_s: float) -> str:
        sidecar = parts.sidecar
        if sidecar is None:
            return "spooled"
        last = parts.spool.last_seq
        begin = _time.monotonic()
        sidecar.ensure()
        while sidecar.acked(parts.source) < last:
            waited = _time.monotonic() - begin
            if waited >= timeout_s or _is_away(sidecar, waited):
                left = last - sidecar.acked(parts.source)
                self._guard.note("finish()", f"{left} records are not delivered yet, they are in {parts.folder}")
                return "spooled"
            _time.sleep(0.02)
        return "delivered"

    def _close(self, parts: Parts) -> None:
        self._parts = self._append = None
        hooks.unwatch(self)
        try:
            parts.heart.stop()
            parts.spool.close()
            parts.slot.close()
            parts.boundary.close()
            if parts.sidecar is not None:
                parts.sidecar.forget()
        except Exception as error:
            self._guard.caught("finish()", error)

    # --- inside --------------------------------------------------------------------------------------------------

    def _open(self, parts: Parts) -> None:
        """Become enabled; called once by ``init()``."""
        self._parts = parts
        self._append = parts.spool.append_row
        self.folder = parts.folder
        hooks.watch(self)
        self._event("start", None, {})

    def _event(self, kind: str, step: int | None, data: dict[str, Any]) -> None:
        parts = self._parts
        if parts is not None:
            parts.spool.append_event(kind, step, time(), data)

    def _current_step(self) -> int | None:
        parts = self._parts
        if parts is None:
            return None
        parts.heart.publish()
        return parts.slot.step if parts.slot.step >= 0 else None

    def _sort(self, step: int, now: float, metrics: Mapping[str, Any]) -> None:
        """Store what can be stored of a call, hand on what lives on a device, refuse the rest."""
        good: dict[str, float] = {}
        device: dict[str, Any] = {}
        refused: list[str] = []
        for name, value in metrics.items():
            trouble = name_trouble(name)
            if trouble:
                refused.append(trouble)
            elif type(value) in self._quick:
                try:
                    good[name] = float(value)
                except OverflowError:
                    refused.append(f"metric {name!r} is an integer beyond the range of a float")
            elif on_device(value):
                device[name] = value
            else:
                try:
                    good[name] = as_float(name, value)
                except ValueError as error:
                    refused.append(str(error))
                else:
                    if is_plain_scalar(value) and len(self._quick) < MAX_QUICK_TYPES:
                        self._quick.add(type(value))
        if good:
            self._store(step, now, good)
        if device:
            if self._deferred is None:
                self._deferred = self._start_deferred()
            self._deferred.put(step, now, device)
        if refused:
            more = f" and {len(refused) - 5} more" if len(refused) > 5 else ""
            raise RefusedError([*refused[:4], refused[-1] + more] if more else refused)

    def _store(self, step: int, now: float, metrics: dict[str, float]) -> None:
        parts = self._parts
        if parts is None:
            return
        names = tuple(metrics)
        if len(names) <= MAX_SET_NAMES:
            parts.spool.append_row(names, step, now, metrics.values())
            return
        values = tuple(metrics.values())
        for at in range(0, len(names), MAX_SET_NAMES):
            end = at + MAX_SET_NAMES
            parts.spool.append_row(names[at:end], step, now, values[at:end])

    def _start_deferred(self) -> Deferred:
        from stabilityclient.values import Deferred

        deferred = Deferred(
            self._store, lambda error: self._guard.note("log()", f"a device value was refused: {error}")
        )
        if self._parts is not None:
            self._parts.heart.deferred = deferred
        return deferred

    def _begin_step(self, step: int) -> None:
        parts = self._parts
        if parts is not None:
            try:
                parts.slot.set_step(step, time())
            except Exception as error:
                self._guard.caught("steps()", error)

    def _boundary(self, step: int, stop: int | None) -> dict[str, Any] | None:
        parts = self._parts
        if parts is None:
            return None
        try:
            return parts.boundary.check(step, stop)
        except Exception as error:
            self._guard.caught("steps()", error)
            return None

    def _leave(self, step: int) -> None:
        parts = self._parts
        if parts is not None:
            try:
                parts.heart.stepping = False
                parts.boundary.leave(step)
            except Exception as error:
                self._guard.caught("steps()", error)

    def _roll_back(self, command: dict[str, Any], step: int) -> int:
        """Call the user's handler and return the step that comes next."""
        rollback = Rollback.of(command)
        handler = self._handler
        assert handler is not None  # a rank without one rejects, and then nobody acts
        try:
            with self.phase("rollback"):
                handler(rollback)
        except BaseException as error:
            self._say(
                command, "failed", _cut(f"the handler raised {type(error).__name__}: {error}", MAX_TEXT_CHARS), step
            )
            raise
        try:
            self._enter_segment(
                rollback.command_id,
                rollback.to_step,
                "command",
                rollback.reason,
                rollback.command_id,
                rollback.issuer,
                rollback.changes(),
            )
            self._say(command, "acted", f"went back to step {rollback.to_step}", step)
        except Exception as error:
            self._guard.caught("steps()", error)
        return rollback.to_step + 1

    def _enter_segment(
        self,
        key: str,
        to_step: int,
        cause: str,
        reason: str,
        command_id: str | None,
        issuer: str,
        changes: Mapping[str, Any],
    ) -> None:
        data = {
            "key": key,
            "to_step": to_step,
            "cause": cause,
            "reason": reason,
            "command_id": command_id,
            "issuer": issuer,
            "changes": dict(changes),
        }
        self._event("segment", to_step, data)
        self._segment_key = key
        if self._parts is not None:
            self._parts.boundary.entered(key)
            self._parts.slot.set_segment(key)

    def _say(self, command: Mapping[str, Any], state: str, detail: str, step: int) -> None:
        attempt = int(command.get("attempt") or 1)
        data = {"command_id": command["command_id"], "attempt": attempt, "state": state, "detail": detail}
        self._event("command", step, data)

    def _arbiter(self, command_id: str, attempt: int) -> Arbiter:
        name = f"{command_id}.{attempt}"
        if self._settings.ranks.one_node:
            assert self.folder is not None
            return FileArbiter(os.path.join(self.folder, "arbiter", name))
        store = find_store()
        if store is None:
            raise NotReadyError("the job spans nodes and torch.distributed is not initialised in this process")
        return TorchStoreArbiter(store, name)

    # --- hooks ---------------------------------------------------------------------------------------------------

    def _on_exception(self, error: BaseException) -> None:
        """An uncaught exception ends the process: say so, in the spool and in the slot."""
        parts = self._parts
        if parts is None:
            return
        try:
            kind, text = type(error).__name__, _cut(str(error), MAX_TEXT_CHARS)
            self._event("exception", self._current_step(), {"type": kind, "message": text})
            parts.heart.publish()
            parts.slot.set_state(STATE_EXCEPTION, f"{kind}: {text}")
            self._outcome = "exception"
        except Exception:  # the process is ending with the user's exception: ours must not cover it
            self._guard.swallowed += 1

    def _on_exit(self) -> None:
        """The process ends without finish()."""
        parts = self._parts
        if parts is None:
            return
        try:
            if self._deferred is not None:
                self._deferred.drain(_time.monotonic() + DEVICE_WAIT_S, _time.monotonic, _time.sleep)
            parts.heart.publish()
            if self._outcome != "exception":
                parts.slot.set_state(STATE_LEFT)
        except Exception:
            self._guard.swallowed += 1
        finally:
            self._close(parts)

    def _on_fork(self) -> None:
        """This is a forked child: the files belong to the parent."""
        self._parts = self._append = None
        self._outcome = "disabled"


class _Phase:
    """Context manager of ``Run.phase``; phases may be nested, the outer one comes back."""

    __slots__ = ("_before", "_expect_s", "_name", "_run")

    def __init__(self, run: Run, name: str, expect_s: float | None) -> None:
        self._run = run
        self._name = name
        self._expect_s = expect_s
        self._before: tuple[str, float] = ("", 0.0)

    def __enter__(self) -> _Phase:
        self._set(self._name, self._expect_s, enter=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._set(*self._before, enter=False)

    def _set(self, name: str, expect_s: float | None, *, enter: bool) -> None:
        parts = self._run._parts
        if parts is None:
            return
        try:
            slot = parts.slot
            if enter:
                self._before = (slot.phase, slot.expect_s)
            slot.set_phase(str(name), time(), float(expect_s or 0.0))
        except Exception as error:
            self._run._guard.caught("phase()", error)


def _is_away(sidecar: Sidecar, waited: float) -> bool:
    """Whether it is of no use to wait for the delivery any longer."""
    state = sidecar.state()
    if state.get("state") in ("refused", "left"):
        return waited >= REFUSED_S
    return state.get("state") == "connecting" and min(waited, time() - float(state.get("since") or 0)) >= AWAY_S


def _step(step: Any) -> int:
    """Return a step as an int, or refuse it.

    Raises:
        RefusedError: not a whole number, negative, too large, or on a device (reading it would wait).
    """
    if on_device(step):
        raise RefusedError(
            [f"step is a {type(step).__name__} on a device, expected an int: reading it would make training wait"]
        )
    try:
        number = index(step)
    except Exception as error:
        raise RefusedError([f"step is {step!r:.80} ({type(step).__name__}), expected a whole number"]) from error
    if not 0 <= number <= MAX_STEP:
        shown = (
            number
            if abs(number) < 10**30
            else f"about 10**{len(str(abs(number))) - 1}"
            if abs(number) < 10**1000
            else "huge"
        )
        raise RefusedError([f"step is {shown}, expected 0 to {MAX_STEP}"])
    return number


def _cut(text: object, chars: int) -> str:
    given = text if isinstance(text, str) else str(text)
    given = given.encode("utf-8", "replace").decode()  # half a surrogate pair can't be sent
    return given if len(given) <= chars else f"{given[: chars - 40]}... ({len(given)} characters)"
