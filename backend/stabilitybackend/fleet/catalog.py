"""Names of all runs, and the runs of each node, for search.

In memory, read once when the server starts: 5,000 runs take a megabyte. Nodes are stored in a hash of Redis.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stabilitybackend.schema.fleet import FoundRun, RunNames
from stabilityclient.wire import Hello

__all__ = ["Catalog"]

#: Runs remembered of a node, newest first.
MAX_RUNS_A_NODE = 8
#: Remembered nodes; the latest ones stay.
MAX_NODES = 10_000


class Catalog:
    """Names of runs and nodes."""

    def __init__(self) -> None:
        self._runs: dict[str, FoundRun] = {}
        #: Node -> runs, newest first; the latest node is the last one.
        self._nodes: dict[str, list[str]] = {}

    def put(self, run: FoundRun) -> None:
        """Take a stored run, unless newer names arrived."""
        known = self._runs.get(run.run_id)
        self._runs[run.run_id] = run if known is None else FoundRun(run.run_id, known.name, known.project, run.created)

    def renamed(self, run: FoundRun) -> None:
        """Take the present name of a run."""
        self._runs[run.run_id] = run

    def replace_nodes(self, nodes: dict[str, list[str]]) -> None:
        """Replace all nodes by the stored ones."""
        self._nodes = nodes

    def put_node(self, node: str, runs: list[str]) -> None:
        """Take a stored node; see ``put``."""
        self._nodes.setdefault(node, runs)

    def announced(self, hello: Hello, now: float) -> list[tuple[str, bytes | None]]:
        """Take an agent's hello; return the nodes to store, None: to remove."""
        known = self._runs.get(hello.run_id) or FoundRun(hello.run_id, "", "", now)
        self._runs[hello.run_id] = FoundRun(
            hello.run_id, hello.name or known.name, hello.project or known.project, known.created
        )
        before = self._nodes.pop(hello.node, [])
        runs = [hello.run_id, *(one for one in before if one != hello.run_id)][:MAX_RUNS_A_NODE]
        self._nodes[hello.node] = runs
        changed: list[tuple[str, bytes | None]] = [] if runs == before else [(hello.node, msgspec.json.encode(runs))]
        if len(self._nodes) > MAX_NODES:
            oldest = next(iter(self._nodes))
            del self._nodes[oldest]
            changed.append((oldest, None))
        return changed

    def forget(self, run_id: str) -> None:
        """Drop a deleted run."""
        self._runs.pop(run_id, None)

    def names(self, run_id: str) -> RunNames:
        """Return the names of a run."""
        known = self._runs.get(run_id)
        return RunNames(run_id) if known is None else RunNames(run_id, known.name, known.project)

    def runs(self, project: str | None = None) -> list[FoundRun]:
        """Return all runs, of one project if given."""
        return [one for one in self._runs.values() if project is None or one.project == project]

    def nodes(self, project: str | None = None) -> Iterator[tuple[str, FoundRun]]:
        """Yield each node with its newest remaining run, of one project if given."""
        for node, runs in list(self._nodes.items()):
            known = (self._runs[run_id] for run_id in runs if run_id in self._runs)
            run = next((one for one in known if project is None or one.project == project), None)
            if run is not None:
                yield node, run
