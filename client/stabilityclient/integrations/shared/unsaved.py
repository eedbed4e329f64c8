"""Orders of a rollback, on disk until a checkpoint has them: a job that dies before that repeats them.

    unsaved = Unsaved(run)
    order = unsaved.take_up(path, ordered)  # a process has loaded a checkpoint: changes still due to its state
    unsaved.note(path, Order.of(rollback), ordered)  # a rollback has, and does not count as carried out yet
    save(..., ordered=unsaved.ordered)
    unsaved.saved(path)

The file ``unsaved-rollback.json`` lies among the checkpoints, ``{name of a checkpoint: Order}``. The first rank writes
and reads it, and informs the others. It is deleted when a later checkpoint is there. Each checkpoint has the id of the
order that changed its state last (``ordered``), and an order knows which one it changed: a death between a save and the
deletion does nothing twice.
"""

from __future__ import annotations

import json
import math
import os
from typing import NamedTuple

from stabilityclient.integrations.shared.ranks import agreed, rank_and_world
from stabilityclient.plan import read_plan
from stabilityclient.start import write_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stabilityclient.rollback.decision import Rollback
    from stabilityclient.run import Run

__all__ = ["Order", "Unsaved", "read_orders", "write_orders"]

_FILE = "unsaved-rollback.json"
#: Longest file that is read, bytes: a command has some 200.
MAX_BYTES = 1024 * 1024


class Order(NamedTuple):
    """Changes due to the state of a checkpoint.

    Args:
        command_id: of the rollback.
        lr_scale: factor on the learning rate, over 0.
        skip_batches: how many batches behind the checkpoint are left out.
        skip_places: the places in the data that are left out, first and last, where a job counts them (``Skips``).
        base: id of the order that the checkpoint has; one with another id was saved anew under its name.
        plan: id of the plan by which the process had come up that carried it out, "" for none.
        seed: new one of the random numbers, from 0 on.
    """

    command_id: str
    lr_scale: float | None = None
    skip_batches: int | None = None
    skip_places: tuple[int, int] | None = None
    base: str = ""
    plan: str = ""
    seed: int | None = None

    @classmethod
    def of(cls, rollback: Rollback, places: tuple[int, int] | None = None) -> Order:
        """Return the order of a rollback; ``places`` are those left out, in place of a number of batches."""
        skip = rollback.skip_batches if places is None else None
        return cls(rollback.command_id, rollback.lr_scale, skip, places, seed=rollback.seed)

    def words(self) -> str:
        """Return the changes as text, "" without any."""
        said = [] if self.lr_scale is None else [f"learning rate times {self.lr_scale:g}"]
        if self.skip_batches:
            said.append(f"{self.skip_batches} batches left out")
        if self.skip_places is not None:
            said.append("batches {}-{} left out".format(*self.skip_places))
        if self.seed is not None:
            said.append(f"random numbers of seed {self.seed}")
        return ", ".join(said)


def write_orders(file: str, orders: dict[str, Order]) -> None:
    """Write a file: whole, and on the disk when this returns.

    Raises:
        OSError: it can't be written.
    """
    data = json.dumps({name: order._asdict() for name, order in orders.items()}).encode()
    write_whole(file, data, durable=True, mode=0o666)  # next to the checkpoints, which other users may share


def read_orders(file: str) -> dict[str, Order]:
    """Return the orders in a file, none without a file.

    Raises:
        OSError: it can't be read. ValueError: it is damaged.
    """
    try:
        # Not blocking: a pipe in place of the file must not be waited for.
        with open(file, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as opened:
            value = json.loads(opened.read(MAX_BYTES))
    except FileNotFoundError:
        return {}
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"it has a {type(value).__name__}, expected orders by the names of checkpoints")
    return {name: _order(one) for name, one in value.items()}


def _order(value: Any) -> Order:
    try:
        order = Order(**value)
        places: Any = None if order.skip_places is None else tuple(order.skip_places)
    except TypeError as error:
        raise ValueError(f"{value!r:.200} is no order: {error}") from error
    factor, count, seed = order.lr_scale, order.skip_batches, order.seed
    good = (
        isinstance(order.command_id, str)
        and isinstance(order.base, str)
        and isinstance(order.plan, str)
        and (factor is None or (type(factor) in (int, float) and factor > 0 and math.isfinite(factor)))
        and (count is None or (type(count) is int and count >= 0))
        and (seed is None or (type(seed) is int and seed >= 0))
        and (places is None or ([*map(type, places)] == [int, int] and 1 <= places[0] <= places[1]))
    )
    if not good:
        raise ValueError(f"{value!r:.200} is no order")
    return order._replace(skip_places=places)


class Unsaved:
    """The orders of one job that no checkpoint has yet. Trouble with the file is logged and keeps no job from training.

    Args:
        run: of :func:`stabilityclient.init`.
        inside: the file lies in the checkpoint's own folder; for frameworks that take every neighbour for a checkpoint.

    Attributes:
        ordered: id of the order that changed the state last, "" for none; each checkpoint has it.
        plan: by which this process started, as ``read_plan`` gives it; that of the first rank counts.
        plan_id: the same for each process started by it, "" without a plan.
    """

    def __init__(self, run: Run, *, inside: bool = False) -> None:
        self._run, self._inside = run, inside
        self._files: set[str] = set()
        self.ordered = ""
        self.plan = read_plan(run._settings.dir, run.run_id)
        self.plan_id = "" if self.plan is None else str(self.plan.get("command_id") or self.plan.get("written"))

    def note(self, path: str | None, order: Order, ordered: str) -> None:
        """Write down how a rollback changed the state of a checkpoint, before it counts as carried out.

        One that changed nothing, too: an earlier note of this checkpoint is void.

        Args:
            path: of the checkpoint.
            ordered: the id that it has.
        """
        self.ordered = order.command_id
        if rank_and_world()[0] != 0:
            return
        try:
            file, name = self._place(str(path))
            write_orders(file, {**self._held(file), name: order._replace(base=ordered, plan=self.plan_id)})
            self._files.add(file)
        except Exception as error:
            what = f"a job that dies before its next save goes on from {path} without what was ordered"
            self._run._guard.note("rollback", f"{what}, as it can't be written down: {error}")

    def take_up(self, path: str, ordered: str) -> Order | None:
        """Return the changes still due to the state of a checkpoint that a process has loaded at its start.

        All ranks call it and get one answer.

        Args:
            ordered: the id that the checkpoint has.
        """
        order: Order | None = agreed(lambda: self._waiting(path, ordered))
        self.ordered = ordered if order is None else order.command_id
        return order

    def _waiting(self, path: str, ordered: str) -> Order | None:
        order = self._noted(path)
        if order is None or order.base != ordered:
            return None
        known = f"{path}: of the rollback {order.command_id}, after which no checkpoint was saved"
        if self._is_replaced(order, path):
            self._run._guard.note("rollback", f"{known}, nothing is done again, as the plan orders other changes")
            return None
        if changes := order.words():
            self._run._guard.note("rollback", f"{known}, this is done again: {changes}")
        return order

    def _is_replaced(self, order: Order, path: str) -> bool:
        """Return whether the plan by which this process started orders changes to the same checkpoint, later."""
        plan = self.plan
        if plan is None or order.plan == self.plan_id:
            return False
        named = (plan.get("checkpoint") or {}).get("path")
        changes = any(plan.get(name) is not None for name in ("lr_scale", "seed", "skip_batches", "skip_range"))
        return changes and named is not None and os.path.realpath(named) == os.path.realpath(path)

    def follow_plan(self, plan: Mapping[str, Any], *, seeds: bool = False) -> None:
        """Note that the changes of the plan are made to the state, and warn of a new seed that the job can't take.

        Args:
            plan: of the first rank, with its ``id``. seeds: the job can take one.
        """
        self.ordered = plan["id"]
        seed = plan.get("seed")
        if seed is not None and not seeds:
            self._run._guard.note(
                "plan", f"seed {seed} is ordered, and this job can take none: its data come as before"
            )

    def follows_plan(self, path: str) -> bool:
        """Return whether the job went back to ``path`` after its start by the plan; asks this rank's disk."""
        order = self._noted(path)
        return order is not None and order.plan == self.plan_id != ""

    def saved(self, path: str | os.PathLike[str]) -> None:
        """A checkpoint is whole that has :attr:`ordered`: the note is void. On the first rank, or on all."""
        if rank_and_world()[0] != 0:
            return
        try:
            files, self._files = self._files, set()
            for file in files if "://" in str(path) else {*files, self._place(str(path))[0]}:
                if os.path.lexists(file):
                    os.unlink(file)
        except OSError as error:
            self._run._guard.note("rollback", f"what was ordered is saved, and can't be deleted: {error}")

    def _noted(self, path: str) -> Order | None:
        try:
            file, name = self._place(path)
        except ValueError:
            return None
        self._files.add(file)
        return self._held(file).get(name)

    def _held(self, file: str) -> dict[str, Order]:
        try:
            return read_orders(file)
        except (OSError, ValueError) as error:
            what = f"{file} can't be read: what a rollback ordered and no checkpoint has yet is lost"
            self._run._guard.note("rollback", f"{what} ({type(error).__name__}: {error})")
            return {}

    def _place(self, path: str) -> tuple[str, str]:
        """Return the file for a checkpoint, and the checkpoint's name in it.

        Raises:
            ValueError: it is on no file system.
        """
        if "://" in path:
            raise ValueError("the checkpoint is on no file system")
        folder, name = os.path.split(os.path.realpath(path))
        return (os.path.join(folder, name, _FILE), ".") if self._inside else (os.path.join(folder, _FILE), name)
