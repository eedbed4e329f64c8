"""Arbiters: the one place where the ranks of a job agree whether they act on a command. The first decision counts.

Contract (``Arbiter``), a double for tests (``MemoryArbiter``) and two real ones: a folder, where all ranks share a
node, and torch's rendezvous store, where they don't. ``tests/client/test_arbiter_laws.py`` runs one set of laws over
all of them.
"""

from __future__ import annotations

import os
import sys
import time

from stabilityclient.errors import NotReadyError
from stabilityclient.rank_state.flight_recorder import has_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Arbiter(Protocol):
        """Agreement of all ranks on one attempt of one command."""

        def mark_ready(self, rank: int) -> None:
            """Vote that this rank will stop at the boundary. Raises OSError when it can't vote."""

        def all_ready(self, world_size: int) -> bool:
            """Whether each of the ``world_size`` ranks voted."""

        def decide(self, decision: str) -> str:
            """Propose ``commit`` or ``abort``; return the decision that counts, which may be the other one."""

        def decision(self) -> str | None:
            """Return the decision that counts, None while there is none."""


__all__ = [
    "ABORT",
    "COMMIT",
    "WAIT_S",
    "FileArbiter",
    "MemoryArbiter",
    "TorchStoreArbiter",
    "arbiter_for",
    "find_store",
    "settle",
]

COMMIT = "commit"
ABORT = "abort"
#: Seconds a ready rank waits at the boundary for the others, at most. The only own wait in a training loop, and
#: only for a command.
WAIT_S = 5.0
#: Seconds between two polls while waiting: 1 ms costs nothing next to a rollback.
_POLL_S = 0.001


def settle(arbiter: Arbiter, world_size: int, *, wait_s: float = WAIT_S) -> str:
    """Wait at the boundary as a ready rank and return the decision that counts: all ranks get the same one."""
    deadline = time.monotonic() + wait_s
    while True:
        decided = arbiter.decision()
        if decided is not None:
            return decided
        if arbiter.all_ready(world_size):
            return arbiter.decide(COMMIT)
        if time.monotonic() >= deadline:
            return arbiter.decide(ABORT)
        time.sleep(_POLL_S)


class MemoryArbiter:
    """Double for tests and simulations: the same contract in one process."""

    def __init__(self) -> None:
        self._ready: set[int] = set()
        self._decision: str | None = None

    def mark_ready(self, rank: int) -> None:
        self._ready.add(rank)

    def all_ready(self, world_size: int) -> bool:
        return self._ready >= set(range(world_size))

    def decide(self, decision: str) -> str:
        if self._decision is None:
            self._decision = decision
        return self._decision

    def decision(self) -> str | None:
        return self._decision


class FileArbiter:
    """A folder that all ranks see.

    A rank's vote is a file made with O_EXCL. The decision is a symbolic link: made only if it is not there, and whole
    with its text in the same system call, so that half a decision is never read, even of a rank that was killed.

    Args:
        folder: of this attempt; made when needed.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._link = os.path.join(folder, "decision")

    def mark_ready(self, rank: int) -> None:
        os.makedirs(self._folder, 0o700, exist_ok=True)
        try:
            os.close(os.open(os.path.join(self._folder, f"ready.{rank}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            pass  # proposed already

    def all_ready(self, world_size: int) -> bool:
        try:
            names = set(os.listdir(self._folder))
        except FileNotFoundError:
            return False
        return all(f"ready.{rank}" in names for rank in range(world_size))

    def decide(self, decision: str) -> str:
        os.makedirs(self._folder, 0o700, exist_ok=True)
        try:
            os.symlink(decision, self._link)
        except FileExistsError:
            return os.readlink(self._link)
        return decision

    def decision(self) -> str | None:
        try:
            return os.readlink(self._link)
        except FileNotFoundError:
            return None


class TorchStoreArbiter:
    """Torch's rendezvous store, which the job has anyway and which all its nodes reach. Two-phase by compare-and-set.

    Args:
        store: a ``torch.distributed`` store. A clone is used where stores can be cloned, so that a collective that
            waits in the job's own connection can't make us wait.
        prefix: unique for this attempt of this command.
    """

    def __init__(self, store: Any, prefix: str) -> None:
        clone = getattr(store, "clone", None)
        try:
            self._store = clone() if clone is not None else store
        except Exception:  # some wrappers have the method and not the ability
            self._store = store
        self._prefix = f"stabilityboard/{prefix}"
        self._seen: set[int] = set()

    def mark_ready(self, rank: int) -> None:
        # compare_set is answered, set is not: a vote that was only sent may stay unseen after the return.
        self._store.compare_set(f"{self._prefix}/ready/{rank}", "", "1")

    def all_ready(self, world_size: int) -> bool:
        # One key a call and each rank asked for until it is there: a job of 1,000 ranks sends no message of 1,000 keys.
        for rank in range(world_size):
            if rank in self._seen:
                continue
            if not self._store.check([f"{self._prefix}/ready/{rank}"]):
                return False
            self._seen.add(rank)
        return True

    def decide(self, decision: str) -> str:
        decided: bytes = self._store.compare_set(f"{self._prefix}/decision", "", decision)
        return decided.decode()

    def decision(self) -> str | None:
        if not self._store.check([f"{self._prefix}/decision"]):
            return None
        decided: bytes = self._store.get(f"{self._prefix}/decision")
        return decided.decode()


def arbiter_for(run_folder: str, one_node: bool, command_id: str, attempt: int) -> Arbiter:
    """Return the arbiter of one attempt that all ranks of the job reach.

    Raises:
        NotReadyError: the job spans nodes and torch.distributed is not initialised in this process.
    """
    name = f"{command_id}.{attempt}"
    if one_node:
        return FileArbiter(os.path.join(run_folder, "arbiter", name))
    store = find_store()
    if store is None:
        raise NotReadyError("the job spans nodes and torch.distributed is not initialised in this process")
    return TorchStoreArbiter(store, name)


def find_store() -> Any | None:
    """Return the default store of torch.distributed if this process has one. Imports nothing."""
    core = sys.modules.get("torch.distributed.distributed_c10d")
    getter = getattr(core, "_get_default_store", None)
    return getter() if getter is not None and has_group(sys.modules) else None
