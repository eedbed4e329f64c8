"""Who this process is in its job, checked against those who know: torch.distributed and the processes beside it.

The environment says it under torchrun, mpirun and Slurm. Under Lightning's own launcher and ``mp.spawn`` it does not,
or not yet when ``init()`` is called; so it is checked again whenever a command has to be answered: a process that is
not sure who it is never says ready. Nothing is imported: torch is asked where the job has it.
"""

from __future__ import annotations

import os
import sys

from stabilityclient.errors import NotReadyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    from stabilityclient.settings import Ranks

__all__ = ["FAMILY_VARIABLE", "RankIdentity", "agreed_run_id", "hand_down", "inherited", "torch_identity"]

#: What a process with a run tells those that it starts as further ranks: ``<pid>-<start>:<run id>:<run folder>``.
FAMILY_VARIABLE = "STABILITY_FAMILY"
_ASK = "call init() after init_process_group(), or set RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE"


def torch_identity() -> tuple[int, int] | None:
    """Return the rank and the ranks of the job as torch.distributed says, None where it is not initialised (yet)."""
    from stabilityclient.rank_state.flight_recorder import has_group

    if not has_group(sys.modules):
        return None
    distributed = sys.modules["torch.distributed"]
    return int(distributed.get_rank()), int(distributed.get_world_size())


def agreed_run_id(mine: str) -> str:
    """Return the run id of the first rank that asks, the same on all ranks; ``mine`` without torch's store."""
    from stabilityclient.rollback.arbiter import find_store

    store = find_store()
    return mine if store is None else str(store.compare_set("stabilityboard/run_id", "", mine).decode())


def hand_down(environ: MutableMapping[str, str], run_id: str, folder: str) -> None:
    """Let processes that this one starts as further ranks of its job find its run."""
    from stabilityclient.start import start_ticks

    environ[FAMILY_VARIABLE] = f"{os.getpid()}-{start_ticks(os.getpid())}:{run_id}:{folder}"


def inherited(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return run id and run folder of the process that started this one as a further rank, None where none did."""
    from stabilityclient.start import start_ticks

    parent, _, rest = environ.get(FAMILY_VARIABLE, "").partition(":")
    run_id, _, folder = rest.partition(":")
    pid = os.getppid()
    return (run_id, folder) if folder and parent == f"{pid}-{start_ticks(pid)}" else None


class RankIdentity:
    """Rank and world size of this process, as sure as they can be.

    Args:
        ranks: as they were understood at the start.
        twin: returns the pid of another living process that records the same rank of the run, None without one.
    """

    def __init__(self, ranks: Ranks, twin: Callable[[], int | None]) -> None:
        self.rank = ranks.rank
        self.world_size = ranks.world_size
        self._guessed = ranks.guessed
        self._twin = twin

    def check(self) -> None:
        """Look again; ``world_size`` is right afterwards.

        Raises:
            NotReadyError: this process is not the rank that it was, or another is the same. It must not act.
        """
        known = torch_identity()
        if known is not None:
            rank, world_size = known
            if rank != self.rank:
                raise NotReadyError(
                    f"this process calls itself rank {self.rank} of {self.world_size}, torch.distributed says rank "
                    f"{rank} of {world_size}: {_ASK}"
                )
            self.world_size = world_size
        elif self._guessed:
            raise NotReadyError(f"no launcher gave this process a rank: {_ASK}")
        twin = self._twin()
        if twin is not None:
            raise NotReadyError(f"process {twin} of this node records rank {self.rank} of this run too: {_ASK}")
