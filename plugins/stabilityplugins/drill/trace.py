"""One leg of a drill on disk: the client's spool and the probe's lines, read while the job runs.

A *leg* is one start of the job. A *round* is one step of its optimizer, as ``probe/stabilitydrill/recorder.py`` writes
it.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import msgspec

from stabilityclient.agent.upload.reader import SpoolReader
from stabilityclient.agent.upload.records import SpooledEvent, SpooledRow

__all__ = ["LegReader", "LegTrace", "Note", "RankTrace", "Round", "State"]

#: Records read from a source at a time, and bytes: more than a job writes between two looks.
_MAX_RECORDS = 100_000
_MAX_BYTES = 64 * 1024 * 1024


class State(msgspec.Struct):
    """Weights and the optimizer's state, as checksums.

    Args:
        weights: a checksum a parameter, in the optimizer's order. weights_norm: norm of all of them together.
        optim: a checksum for each kind of number that the optimizers keep (``exp_avg``, ``step``). optim_norm: norms.
        sharded: each rank holds a part of a parameter only.
    """

    weights: list[int]
    weights_norm: float
    optim: dict[str, str]
    optim_norm: dict[str, float]
    sharded: bool = False


class Round(State, kw_only=True):
    """One step of the optimizer: the state after it, and the facts just before it.

    Args:
        round: 1 for the first one of the process.
        rates: learning rate of each group of parameters. hyper: checksum of the groups' other settings.
        schedules: ``last_epoch`` of each learning-rate scheduler. scaler: checksum of the GradScalers' states.
        rng: generator -> checksum of its state. rows: a checksum a sample of the batch.
        loss: sum of the tensors of ``backward()``, None where unseen. grads: checksum of the gradients.
        buffers: checksum of the modules' buffers.
    """

    round: int
    rates: list[float]
    hyper: str
    schedules: list[int]
    scaler: str
    scalers: int
    rng: dict[str, str]
    rows: list[int]
    loss: float | None
    grads: str
    grad_norm: float
    buffers: str


class Note(msgspec.Struct):
    """After ``round`` rounds the job logged ``step``, reported its checkpoint, or saved something (no step)."""

    kind: str
    step: int | None
    round: int
    path: str = ""


class RankTrace(msgspec.Struct):
    """The probe's record of one process that has an optimizer."""

    rank: int = 0
    world: int = 1
    begin: State | None = None
    rounds: list[Round] = []
    notes: list[Note] = []
    names: list[str] = []
    troubles: list[str] = []


class LegTrace(msgspec.Struct):
    """All facts of one leg.

    Args:
        ranks: rank -> its probe's record; empty where the probe could not be loaded or the job has no torch.
        metrics: rank -> name -> step -> value, as logged by the client.
        batches: (rank, step) -> the job's report of the batch. checkpoints: (step, path) as the client reported them.
        code: exit code of the job, None where the drill ended it. output: its last lines.
    """

    ranks: dict[int, RankTrace] = {}
    metrics: dict[int, dict[str, dict[int, float]]] = {}
    batches: dict[tuple[int, int], str] = {}
    checkpoints: list[tuple[int, str]] = []
    code: int | None = None
    output: str = ""

    @property
    def lead(self) -> RankTrace | None:
        """The probe's record of the lowest rank that logged a step, else of the lowest rank; None without one."""
        ranks = [self.ranks[rank] for rank in sorted(self.ranks)]
        logging = [one for one in ranks if any(note.kind == "log" for note in one.notes)]
        return next(iter(logging or ranks), None)

    @property
    def last_step(self) -> int:
        """Last step that any rank logged, -1 without one."""
        return max((max(steps) for names in self.metrics.values() for steps in names.values() if steps), default=-1)


class LegReader:
    """Reads a leg as it grows.

    Args:
        spool: ``STABILITY_DIR`` of the leg. probe: folder of the probe's lines.
    """

    def __init__(self, spool: Path, probe: Path) -> None:
        self._spool = spool
        self._probe = probe
        self._readers: dict[Path, tuple[int, SpoolReader]] = {}
        self._places: dict[Path, int] = {}
        self._processes: dict[Path, RankTrace] = {}
        self.trace = LegTrace()

    def read(self) -> LegTrace:
        """Take in the new lines and return all of them."""
        for source in sorted(self._spool.glob("*/sources/*/source.json")):
            if source.parent not in self._readers:
                rank = int(json.loads(source.read_text()).get("rank") or 0)
                self._readers[source.parent] = (rank, SpoolReader(str(source.parent), gap_wait_s=0.0))
        for rank, reader in self._readers.values():
            if reader.next_seq == 1:
                reader.seek(1)
            for record in reader.read(_MAX_RECORDS, _MAX_BYTES):
                self._take_record(rank, record)
        for path in sorted(self._probe.glob("*.jsonl")):
            self._take_lines(path)
        return self.trace

    def close(self) -> None:
        """Unmap the spool."""
        for _, reader in self._readers.values():
            reader.close()

    def _take_record(self, rank: int, record: Any) -> None:
        if isinstance(record, SpooledRow):
            values = struct.unpack_from(f"<{len(record.names)}d", record.data, 16)
            known = self.trace.metrics.setdefault(rank, {})
            for name, value in zip(record.names, values, strict=True):
                known.setdefault(name, {})[record.step] = value
        elif isinstance(record, SpooledEvent) and record.step is not None:
            if record.type == "checkpoint":
                self.trace.checkpoints.append((record.step, str(record.data.get("path", ""))))
            elif record.type in ("batch", "data"):
                key = (rank, record.step)
                text = json.dumps(record.data, sort_keys=True)
                self.trace.batches[key] = self.trace.batches.get(key, "") + text

    def _take_lines(self, path: Path) -> None:
        """Read whole lines only: the last one may still be in the making."""
        with path.open("rb") as file:
            file.seek(self._places.get(path, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._places[path] = self._places.get(path, 0) + len(whole)
        process = self._processes.setdefault(path, RankTrace())
        for line in whole.splitlines():
            found = json.loads(line)  # a loss may be NaN, which msgspec refuses
            kind = found["kind"]
            if kind == "begin":
                process.rank, process.world = found["rank"], found["world"]
                process.begin = msgspec.convert(found, State)
            elif kind == "round":
                process.rounds.append(msgspec.convert(found, Round))
            elif kind == "names":
                process.names = found["params"]
            elif kind == "trouble":
                if found["text"] not in process.troubles:
                    process.troubles.append(found["text"])
            else:
                process.notes.append(msgspec.convert(found, Note))
            if process.begin is not None:
                known = self.trace.ranks.get(process.rank)
                if known is None or len(known.rounds) <= len(process.rounds):
                    self.trace.ranks[process.rank] = process
