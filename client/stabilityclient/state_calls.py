"""``run.checkpoint`` and ``run.restored``: the state that was saved, and the one that training goes on from."""

from __future__ import annotations

import os
from _thread import get_ident

from stabilityclient.arguments import cut, step_of, without_secrets
from stabilityclient.errors import RefusedError
from stabilityclient.rank_state.phase import saves
from stabilityclient.rollback.decision import Rollback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stabilityclient.guard import Guard
    from stabilityclient.rank_state.phase_table import PhaseEntry
    from stabilityclient.rollback.handler import Restoring
    from stabilityclient.run_components import RunComponents

__all__ = ["StateCalls"]

MAX_PATH_CHARS = 4_096


class StateCalls:
    """The calls of a run about its state as a whole."""

    _guard: Guard
    _components: RunComponents | None
    _restoring: Restoring
    #: Whether it was said from which state this process goes on.
    _said_restored = False
    #: Phases that save -> seconds spent in them up to the last checkpoint.
    _saving: Mapping[PhaseEntry, float] = {}

    def _event(self, kind: str, step: int | None, data: dict[str, Any]) -> bool:
        raise NotImplementedError

    def checkpoint(self, step: int, path: str | os.PathLike[str], *, before_step: bool = False) -> None:
        """Say that the state after ``step`` is saved at ``path``: a place to roll back to.

        Call it right after saving: a digest of the random number generators' states (some 0.1 ms) goes with it, and is
        compared when the job goes on from here. From another thread than the one that steps nothing goes with it:
        training has gone on since. How long the save took goes with it where it was, or is, inside a phase with
        ``checkpoint``, ``ckpt`` or ``save`` in its name.

        The node's agent looks at what is there, and whether all of it is: a save that goes on in the background may be
        announced when it begins.

        Args:
            step: whose state it is.
            path: file, folder or URL (s3://, gs://, az://; without its user and query, which may be secrets).
            before_step: the state is that *before* ``step``, as nanoGPT saves it: the checkpoint is one of the step
                before, and training goes on with ``step``.
        """
        try:
            text = os.fspath(path)
            if not isinstance(text, str) or not 1 <= len(text) <= MAX_PATH_CHARS:
                raise RefusedError(
                    [f"checkpoint path is {path!r:.80}, expected a path of 1 to {MAX_PATH_CHARS} characters"]
                )
            text = without_secrets(text) if "://" in text else os.path.abspath(text)
            owner = 0 if self._components is None else self._components.slot.owner
            random = self._random() if owner in (0, get_ident()) else {}
            at = step_of(step)
            if before_step and at == 0:
                raise RefusedError(["checkpoint step is 0 with before_step=True, expected 1 or more"])
            data = {"path": cut(text, 2 * MAX_PATH_CHARS), **random, **self._took()}
            self._event("checkpoint", at - 1 if before_step else at, data)
        except Exception as error:
            self._guard.caught("checkpoint()", error)

    def _took(self) -> dict[str, float]:
        """Return how long the save has held up training: what such phases took since the last call, seconds."""
        if self._components is None:
            return {}
        slot = self._components.slot
        spent = {entry: entry.total for name, (_, entry) in list(slot.phases.known.items()) if saves(name)}
        took = sum(total - self._saving.get(entry, 0.0) for entry, total in spent.items())
        inside = slot.top.saving() if slot.top is not None and get_ident() == slot.owner else None
        if inside is not None:
            entry, took = inside
            spent[entry] = entry.total + took  # it is told now
        self._saving = spent
        return {"took_s": round(took, 3)} if took >= 0.001 else {}

    def restored(self, rollback: Rollback | int, *, applied: Mapping[str, Any] | None = None) -> None:
        """Say that a state is back, right after it was loaded: its random numbers are compared with those saved.

        Of an ordered rollback this is when it has acted, and the next row is in the new segment. A process that uses
        :meth:`steps` or :meth:`boundary` need not say it of its start: the first step does.

        Args:
            rollback: what :meth:`boundary` returned or an ``on_rollback(later=True)`` handler noted; or the step whose
                state a process that was started again has loaded.
            applied: what was changed on order.
        """
        if self._components is None:
            return
        try:
            if isinstance(rollback, Rollback):
                self._back(rollback, applied)
                return
            if applied is not None:
                what = "restored() got applied= and a step"
                raise RefusedError([f"{what}, expected applied= with the rollback that ordered it"])
            self._say_restored(step_of(rollback))
        except Exception as error:
            self._guard.caught("restored()", error)

    def _back(self, rollback: Rollback, applied: Mapping[str, Any] | None) -> None:
        raise NotImplementedError

    def _goes_on(self, step: int, *, again: bool = False) -> None:
        """This rank goes on from the state after ``step``, at the start of its process or (``again``) later."""
        try:
            if self._components is not None and step >= 0 and (again or not self._said_restored):
                self._say_restored(step)
        except Exception as error:
            self._guard.caught("steps()", error)

    def _say_environment(self) -> None:
        """The loop of steps() begins: what the job computes with is imported, and is reported before its first row."""
        try:
            if self._components is not None:
                self._components.heartbeat.say_once(begun=True)
        except Exception as error:
            self._guard.caught("steps()", error)

    def _say_restored(self, step: int) -> None:
        self._said_restored = True
        self._event("restored", step, self._random())

    def _random(self) -> dict[str, dict[str, str]]:
        if self._components is None:
            return {}
        from stabilityclient.rank_state.random_states import random_states

        return {"rng": random_states()}
