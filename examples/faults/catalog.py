"""The faults of the matrix: what happens, and what has to be said of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        name: of the method in rank.py, or of the one in stage.py for faults of a node.
        text: what happens.
        kind: of the incident that has to come; "" where nothing may.
        classes: words of ``evidence.verdict.class`` that are right; empty where the incident has none.
        blames: whether one rank is to blame.
        node: whether it happens to a node: then each rank has its own.
        also: kinds of further incidents that are true.
        lasts_s: for faults that pass: seconds.
    """

    name: str
    text: str
    kind: str
    classes: tuple[str, ...] = ()
    blames: bool = True
    node: bool = False
    also: tuple[str, ...] = ()
    lasts_s: float = 0.0


#: Each one is a row of the table.
FAULTS = (
    Fault("data_loader", "the loader's worker dies, the rank waits for a batch", "hang", ("data_loader",)),
    Fault("peer_missing", "a rank's data end first: it leaves the loop and finishes", "hang", ("peer_missing",)),
    Fault("livelock", "a Python loop that never ends", "hang", ("livelock",)),
    Fault("gil_held", "a call into C that keeps the interpreter's lock", "hang", ("gil_held",)),
    Fault("blocked", "a lock that nobody gives back", "hang", ("blocked",)),
    Fault("stopped", "SIGSTOP: a debugger, a frozen cgroup", "hang", ("stopped",)),
    Fault("checkpoint_hang", "a checkpoint that was to take 2 s never ends", "hang", ("overdue",)),
    Fault("sigkill", "kill -9 from outside", "process_death", ("signal",)),
    Fault("segfault", "a segmentation fault in native code", "process_death", ("crash",)),
    Fault("abort", "abort() in native code", "process_death", ("crash",)),
    Fault("exit_code", "the process leaves with code 3 and says nothing", "process_death", ("exit_code",)),
    Fault("exception", "an uncaught exception", "process_death", ("exception",)),
    Fault("oom", "the kernel kills the process for memory", "process_death", ("oom_kill",)),
    Fault("slow_all", "every rank needs four times as long", "throughput", blames=False),
    Fault("slow_data", "one rank's loader is slow, all wait for it", "straggler", also=("throughput",)),
    Fault("agent_dead", "the agent of a node dies and stays dead", "agent_lost", ("agent_dead",), node=True),
    Fault("partition", "a node's packets go nowhere", "agent_lost", ("partition",), node=True),
    Fault(
        "node_lost", "a node freezes: its ranks stand, its packets go nowhere", "hang", ("node_lost",), node=True,
        also=("agent_lost",),
    ),
    Fault("server_away", "the server is killed for 20 s", "", blames=False, lasts_s=20.0),
    Fault("agent_paused", "the agent is stopped for 20 s", "", blames=False, lasts_s=20.0),
)  # fmt: skip
