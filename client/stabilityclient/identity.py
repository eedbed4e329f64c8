"""Who this process is in its job, checked against torch.distributed and the processes next to it.

The environment gives it under torchrun, mpirun and Slurm. Under Lightning's own launcher and ``mp.spawn`` it does not,
or not yet when ``init()`` is called; so it is checked again whenever a command has to be answered: a process that is
unsure of its identity never reports ready. Nothing is imported: torch is asked where the job has it.
"""

from __future__ import annotations

import os
import sys

from stabilityclient.errors import NotReadyError, SettingError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

__all__ = [
    "FAMILY_VARIABLE", "RANK_VARIABLES", "RankIdentity", "Ranks", "agreed_run_id", "hand_down", "inherited",
    "torch_identity", "whole_in",
]  # fmt: skip

#: Passed by a process with a run to those that it starts as further ranks: ``<pid>-<start>:<run id>:<run folder>``.
FAMILY_VARIABLE = "STABILITY_FAMILY"
_ASK = "call init() after init_process_group(), or set RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE"


#: Variables of torchrun; the others of Ranks are only read where they make sense.
RANK_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"),
    "TORCHELASTIC_RESTART_COUNT",
)


class Ranks:
    """Identity of this process in its job, from the launcher's variables.

    torchrun first, then mpirun (Open MPI; MPICH and Intel MPI, whose Hydra sets PMI_ and MPI_LOCAL...), last Slurm:
    where mpirun works inside of a Slurm job, Slurm's variables are those of the batch script or of mpirun's daemons.
    Where torch.distributed is initialised already, it knows (``identity.py``). Lightning's own launcher gives the
    processes that it starts LOCAL_RANK, NODE_RANK and WORLD_SIZE, and no RANK.

    Attributes:
        rank: global rank. local_rank: rank on the node. world_size: ranks in the job.
        local_world_size: ranks on this node. generation: how often the launcher restarted the job.
        guessed: no launcher gave the rank of a process that is one of several.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.world_size = _whole(environ, 1, "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
        rank = _whole(environ, -1, "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
        self.local_rank = _whole(
            environ, 0, "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"
        )
        self.generation = _whole(environ, 0, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
        node_rank = _whole(environ, 0, "NODE_RANK", "GROUP_RANK")
        alone = self.world_size == 1 or "LOCAL_RANK" in environ
        self.guessed = rank < 0 and (node_rank > 0 or not alone)
        self.rank = max(rank, 0) if rank >= 0 or "LOCAL_RANK" not in environ else self.local_rank
        # Without the variable a job of several ranks is taken to span nodes: the careful assumption (see arbiter.py).
        self.local_world_size = _whole(
            environ, 1, "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"
        )

    def take(self, rank: int, world_size: int, environ: Mapping[str, str]) -> None:
        """Take the identity from torch.distributed; the rank replaces a missing local rank."""
        if not environ.get("LOCAL_RANK") and self.world_size == 1:
            self.local_rank = rank
        self.rank, self.world_size, self.guessed = rank, world_size, False

    @property
    def one_node(self) -> bool:
        """Whether all ranks of the job share this node."""
        return self.local_world_size >= self.world_size


def _whole(environ: Mapping[str, str], default: int, *names: str) -> int:
    for name in names:
        text = environ.get(name)
        if text:
            try:
                value = int(text)
            except ValueError:
                value = -1
            if value < 0:
                if name.startswith(("SLURM_", "OMPI_", "PMI_", "MPI_")):
                    continue  # e.g. "4(x2)": not meant for us
                raise SettingError(name, text, "a whole number >= 0, as torchrun sets it")
            return value
    return default


def whole_in(name: str, environ: Mapping[str, str]) -> int:
    """Return the whole number in a variable.

    Raises:
        SettingError: it is none.
    """
    return _whole(environ, 0, name)


def torch_identity() -> tuple[int, int] | None:
    """Return rank and world size of torch.distributed, None where it is not initialised (yet)."""
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
