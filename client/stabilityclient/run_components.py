"""Files, threads and mailbox of an enabled run in its process."""

from __future__ import annotations

import os
import sys
import time

from stabilityclient.errors import NotReadyError
from stabilityclient.rank_state.slot import CLAIM_STEPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from stabilityclient.guard import Guard
    from stabilityclient.rollback.arbiter import Arbiter
    from stabilityclient.settings import ClientSettings

__all__ = ["AFTER_LOOP", "RunComponents"]

#: Phase of a rank between two loops of steps() and after the last one, where it declares none itself.
AFTER_LOOP = b"after-loop"


class RunComponents:
    """Makes the files of a run, starts its heartbeat thread and its agent.

    Args:
        report: logs the state of a command: ``report(command, state, detail, step)``.
        logged: returns the step of the newest log() and its unix seconds.

    Raises:
        OSError: the folder can't be used.
    """

    def __init__(
        self,
        settings: ClientSettings,
        guard: Guard,
        report: Callable[[Mapping[str, Any], str, str, int], None],
        logged: Callable[[], tuple[int, float]],
    ) -> None:
        # Imported here: a disabled run pays nothing.
        from stabilityclient.identity import RankIdentity, hand_down
        from stabilityclient.rank_state.end_signals import EndSignals
        from stabilityclient.rank_state.heartbeat import HeartbeatThread
        from stabilityclient.rank_state.probe import Probe
        from stabilityclient.rollback.arbiter import arbiter_for
        from stabilityclient.rollback.boundary import Boundary
        from stabilityclient.sidecar import Sidecar
        from stabilityclient.start import find_twin, open_source, run_folder

        node = settings.node
        ranks = settings.ranks
        self.folder = run_folder(settings, node)
        self.source, self.spool, self.slot, self.stack_file = open_source(
            settings, self.folder, node, os.getpid(), time.time_ns(), guard.note
        )
        home = os.path.join(self.folder, "sources", self.source)
        self.probe = Probe(os.path.join(self.folder, "probe"), os.path.join(home, "probe.json"), self.slot)

        def twin() -> int | None:
            return find_twin(os.path.join(self.folder, "sources"), ranks.rank, node, os.getpid())

        self._identity = RankIdentity(ranks, twin)

        def arbiter(command_id: str, attempt: int) -> Arbiter:
            on_one_node = ranks.local_world_size >= self._identity.world_size
            return arbiter_for(self.folder, on_one_node, command_id, attempt)

        self.boundary = Boundary(self.folder, ranks.rank, ranks.world_size, arbiter, report, identity=self._identity)
        hand_down(os.environ, settings.run_id, self.folder)
        self.sidecar: Sidecar | None = None
        if settings.mode == "online":
            self.sidecar = Sidecar(self.folder, settings.url, settings.api_key, settings.drain_s)
            if ranks.local_rank == 0:
                try:
                    self.sidecar.start()
                except NotReadyError as error:
                    guard.note("agent", str(error))  # the records stay in the spool; the heartbeat thread tries again
        self.end_signals = EndSignals(os.environ, settings.dump_signal)
        self.heartbeat = HeartbeatThread(
            self.slot,
            self.spool,
            self.sidecar,
            guard,
            ranks,
            logged,
            (self.end_signals.poll, self.probe.poll),
            # The ranks of one node compute with the same.
            self._environment() if ranks.local_rank == 0 and settings.facts else None,
        )
        self.heartbeat.start()

    def enter(self) -> None:
        """Begin a loop of steps in this thread."""
        self.heartbeat.stepping(True)
        self.slot.claim(CLAIM_STEPS)
        if self.slot.top is None:
            self.slot.show(b"", time.time(), 0.0)

    def leave(self, step: int) -> None:
        """End the loop of steps before ``step``. Work after it, such as a last save, is no stalled step."""
        self.heartbeat.stepping(False)
        self.boundary.leave(step)
        if self.slot.top is None:
            self.slot.show(AFTER_LOOP, time.time(), 0.0)

    def close(self) -> None:
        """Stop the thread and close the files; the agent continues by itself."""
        self.heartbeat.stop()
        self.spool.close()
        self.slot.close()
        self.stack_file.close()
        self.boundary.close()
        self.probe.close()
        if self.sidecar is not None:
            self.sidecar.forget()

    def _environment(self) -> Callable[[], object]:
        """Return the report of the environment. Files are read here: a hanging disk must not stop the heartbeat."""
        from stabilityclient.environment import environment, git_commit

        git = git_commit(getattr(sys.modules.get("__main__"), "__file__", None))

        def report() -> None:
            found = environment(os.environ, self._identity.world_size, git)
            self.spool.append_event("environment", None, time.time(), {**found})

        return report
