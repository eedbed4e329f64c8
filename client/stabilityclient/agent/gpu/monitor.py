"""The node's GPUs for the agent's life: takes samples of the threads, reports changes, knows which rank is where."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from stabilityclient.agent.gpu.calls import HangGuard
from stabilityclient.agent.gpu.changes import Budget, Change, GpuChanges
from stabilityclient.agent.gpu.listener import WAIT_S
from stabilityclient.agent.gpu.poller import POLL_S, GpuPoller
from stabilityclient.agent.gpu.samples import GpuInfo, NodeSample, index_of_mute, row_of
from stabilityclient.agent.watch.kernel_lines import KernelMessage
from stabilityclient.agent.watch.visibility_gaps import Gap

__all__ = ["GpuMonitor", "RankProcess", "ReportedXid", "XidFold", "device_for", "visible_devices"]

#: The same Xid of the same GPU within so long is one, whichever source it comes from; repeats are counted, seconds.
SAME_S = 5.0
#: An Xid of NVML waits so long for its line in the kernel's log, which has more facts (process, sub-code), seconds.
LINE_WAIT_S = 0.5
#: Pairs of GPU and Xid remembered.
MAX_PAIRS = 512

_PROCESS = re.compile(r"\bpid=(\d+)(?:, name=([^,]{1,64}))?")


class ReportedXid(NamedTuple):
    """Xid to report. ``gpu``: key of the GPU; ``facts``: ``xid``, ``source``, meaning of the line; ``line``: text."""

    gpu: str
    facts: dict[str, Any]
    line: str


class XidFold:
    """Takes Xids as they come, gives them away once.

    Args:
        with_lines: whether the kernel's log is read too, so that waiting for a line makes sense; may change.
    """

    def __init__(self, with_lines: bool = True) -> None:
        self.with_lines = with_lines
        #: (gpu, xid) to (when it was reported, repeats since).
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}
        self._waiting: dict[tuple[str, int], tuple[float, ReportedXid]] = {}

    def nvml(self, gpu: str, xid: int, now: float) -> None:
        """Take an event of NVML's."""
        self._take(gpu, xid, {"source": "nvml"}, "", now, now + (LINE_WAIT_S if self.with_lines else 0.0))

    def kernel(self, gpu: str, line: KernelMessage, now: float) -> None:
        """Take a line about an identified GPU."""
        if line.xid is None:
            return
        found = _PROCESS.search(line.text)
        process: dict[str, Any] = {} if found is None else {"pid": int(found[1])}
        if found is not None and found[2]:
            process["process"] = found[2]
        waiting = self._waiting.get((gpu, line.xid))
        if waiting is not None:  # the same one, and NVML was first
            self._waiting[gpu, line.xid] = (now, ReportedXid(gpu, waiting[1].facts | process, line.text))
        else:
            self._take(gpu, line.xid, {"source": "kernel"} | process, line.text, now, now)

    def due(self, now: float) -> list[ReportedXid]:
        """Return those that are due, oldest first."""
        ready = [key for key, (at, _) in self._waiting.items() if at <= now]
        return [self._waiting.pop(key)[1] for key in ready]

    def _take(self, gpu: str, xid: int, facts: dict[str, Any], line: str, now: float, due: float) -> None:
        """Report it at ``due``, with its count since the last report; repeats of a moment ago are counted."""
        at, repeats = self._seen.get((gpu, xid), (-SAME_S, 0))
        if now - at < SAME_S:
            self._seen[gpu, xid] = (at, repeats + 1)
            return
        while len(self._seen) >= MAX_PAIRS:
            del self._seen[next(iter(self._seen))]
        self._seen.pop((gpu, xid), None)
        self._seen[gpu, xid] = (now, 0)
        facts = {"xid": xid} | facts | ({"repeats": repeats} if repeats else {})
        self._waiting[gpu, xid] = (due, ReportedXid(gpu, facts, line))


#: Bytes read of a process's environment.
MAX_ENVIRON_BYTES = 1024 * 1024
#: Processes whose environment is remembered.
MAX_REMEMBERED = 256
#: Prefix of a MIG instance's name that has its GPU's in it (drivers before 470): MIG-GPU-<uuid>/<instance>/<instance>.
_OLD_MIG = "MIG-GPU-"


def device_for(
    gpus: Sequence[GpuInfo], pids: Mapping[str, float], local_rank: int | None, visible: str | None
) -> GpuInfo | None:
    """Return the GPU of one rank, None if unknown.

    Args:
        gpus: of the node. pids: key of each GPU on which the rank's process computes, to the memory that it uses.
        local_rank: rank on the node. visible: its CUDA_VISIBLE_DEVICES; None: not set, so it sees all.
    """
    expected = _expected(gpus, local_rank, visible)
    found = [gpu for gpu in gpus if gpu.key in pids]
    if expected in found or not found:
        return expected
    # Several when a process left a context on GPU 0 by accident: the one with its model is the one it trains on.
    return max(found, key=lambda gpu: pids[gpu.key])


def _expected(gpus: Sequence[GpuInfo], local_rank: int | None, visible: str | None) -> GpuInfo | None:
    in_order = sorted(gpus, key=lambda gpu: gpu.index)
    if visible is None:
        return in_order[local_rank] if local_rank is not None and 0 <= local_rank < len(in_order) else None
    names = [name.strip() for name in visible.split(",")] if visible.strip() else []
    seen: list[GpuInfo] = []
    for name in names:
        gpu = _named(in_order, name)
        if gpu is None:
            break  # CUDA too takes only the names before the first invalid one
        seen.append(gpu)
    if len(seen) == 1:
        return seen[0]  # each rank was given its own
    return seen[local_rank] if local_rank is not None and 0 <= local_rank < len(seen) else None


def _named(gpus: Sequence[GpuInfo], name: str) -> GpuInfo | None:
    if name.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(name)), None)
    if name.startswith(_OLD_MIG):
        name = name.removeprefix("MIG-").partition("/")[0]
    if name.startswith("MIG-"):
        return next((gpu for gpu in gpus if any(mig.startswith(name) for mig in gpu.mig)), None)
    found = [gpu for gpu in gpus if gpu.uuid.startswith(name)] if name.startswith("GPU-") else []
    return found[0] if len(found) == 1 else None


@lru_cache(MAX_REMEMBERED)
def visible_devices(pid: int) -> str | None:
    """Return the CUDA_VISIBLE_DEVICES with which a process started, None where it has none or can't be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read(MAX_ENVIRON_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry).get("CUDA_VISIBLE_DEVICES")


#: Seconds between two polls of the threads' samples.
TICK_S = 0.25
#: A call that is older hangs, seconds; with a shorter poll it is as long as that, never below MIN_HANG_S.
HANG_S = 10.0
MIN_HANG_S = 1.0
#: An inventory is reported when it stayed the same for so long: ranks come one after the other at a start, seconds.
INVENTORY_SETTLES_S = 1.0
#: Inventories a minute in the long run, and in one burst.
INVENTORIES_A_MINUTE, INVENTORIES_AT_ONCE = 6.0, 4.0
#: For so long after a rank's start each sample asks for its GPU's processes, seconds: a context is made late.
PIDS_WANTED_S = 120.0

#: Time allowed to calls beyond that, seconds: the wait for events waits, and without persistence mode nvmlInit starts
#: each GPU of the node again.
_MAY_TAKE_S = {"nvmlEventSetWait_v2": WAIT_S, "nvmlInit": 30.0}
#: Remedy for an unseen GPU.
_DO = {
    "gpu": "nothing, unless this node has NVIDIA GPUs: check the driver, and that the container is given the GPUs",
    "gpu_events": "nothing: Xids come from the kernel's log, where it can be read",
    "gpu_ecc": "nothing on GPUs without ECC; elsewhere: nvidia-smi -e 1, then reset the GPU",
}


class RankProcess(NamedTuple):
    """The newest process of a rank on this node."""

    rank: int
    pid: int
    local_rank: int | None


class GpuMonitor:
    """Reports events and rows through callables; NVML's calls wait in threads of their own.

    Args:
        emit: takes the type (``gpu``, ``gpu_inventory``, ``gpu_note``, ``kernel``) and the data of an event.
        row: takes the values of one sample. ranks: returns the newest process of each rank of this node, dead or alive.
        kernel_log: whether the kernel's log is read.
    """

    def __init__(
        self,
        emit: Callable[[str, dict[str, Any]], None],
        row: Callable[[dict[str, float]], None],
        ranks: Callable[[], Iterable[RankProcess]],
        kernel_log: Callable[[], bool] = lambda: True,
        *,
        poll_s: float = POLL_S,
    ) -> None:
        self._emit = emit
        self._row = row
        self._ranks = ranks
        self._kernel_log = kernel_log
        self._poller = GpuPoller(poll_s)
        hang_s = min(HANG_S, max(MIN_HANG_S, poll_s))
        self._poll_guard, self._event_guard = HangGuard(hang_s), HangGuard(hang_s)
        self._sample = NodeSample(False, "not read yet")
        self._sampled_at: float | None = None
        self._changes: dict[str, GpuChanges] = {}
        self._unplaced = GpuChanges()
        self._xids = XidFold()
        self._lines: dict[str, Budget] = {}
        #: Processes of ranks, and the memory that each uses on each GPU by its key, MiB.
        self._placed: dict[int, dict[str, float]] = {}
        self._since: dict[int, float] = {}
        self._gaps: dict[str, str] = {}
        #: Why the last tick failed, empty when it did not.
        self._failed = ""
        self._inventory: object = None
        self._inventory_since = 0.0
        self._inventory_reported: object = None
        self._inventories = Budget(INVENTORIES_A_MINUTE, INVENTORIES_AT_ONCE)
        self._note: tuple[bool, str] | None = None
        self._times: dict[str, dict[str, tuple[float, float]]] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        self._poller.start()
        try:
            while True:
                try:
                    self.tick()
                    self._failed = ""
                except Exception as error:  # of values that no driver should give: the job's data is not to suffer
                    self._failed = f"unexpected answer of NVML: {type(error).__name__}: {error}"[:300]
                await asyncio.sleep(TICK_S)
        finally:
            self._poller.stop()

    @property
    def reading(self) -> dict[str, Any]:
        """Return ``{"visible","text","time"}`` for a Health message; ``time``: of the last sample, unix seconds."""
        text, hanging = self._sample.text, self._poll_guard.hanging
        if hanging is not None:
            gpu = self._sample.gpus.get(hanging.gpu)
            where = "" if gpu is None else f"GPU {gpu.index}: "
            text = f"{where}{hanging.name} does not come back; the values are those of before"
        return {"visible": self._sample.visible, "text": text, "time": self._sampled_at}

    def gaps(self) -> list[Gap]:
        """Return the facts of the GPUs that can't be seen here."""
        found = [Gap(what, why, _DO.get(what, "")) for what, why in self._gaps.items()]
        if self._poll_guard.hanging is not None:
            found.append(Gap("gpu", self.reading["text"], "check the GPU; it may need a reset"))
        if self._failed:
            found.append(Gap("gpu", self._failed, "report it, with the driver's version"))
        if self._poller.listener_gap and self._sample.visible:
            found.append(Gap("gpu_events", self._poller.listener_gap, _DO["gpu_events"]))
        return found

    def device_of(self, pid: int, local_rank: int | None) -> dict[str, Any] | None:
        """Return ``{"index","uuid"}`` of the GPU on which a rank computes, None if unknown."""
        gpu = self._device(pid, local_rank)
        return None if gpu is None else {"index": gpu.index, "uuid": gpu.uuid}

    def kernel(self, lines: Iterable[KernelMessage]) -> None:
        """Take new lines of the kernel's log: an Xid of an identified GPU counts there, the rest is reported."""
        now = time.monotonic()
        for line in lines:
            known = self._sample.gpus.values() if line.what == "xid" and line.bus_id else ()
            gpu = next((gpu for gpu in known if gpu.bus_id == line.bus_id), None)
            if gpu is not None:
                self._xids.kernel(gpu.key, line, now)
                self._poller.ask_now()  # memory errors and the recovery action follow an Xid
                continue
            more = self._lines.setdefault(line.what, Budget()).take(now)
            if more is None:
                continue
            data = {"what": line.what, "text": line.text}
            named = {name: getattr(line, name) for name in ("pid", "bus_id", "xid", "comm", "scope", "cgroup")}
            named["suppressed"] = more or None
            self._emit("kernel", data | {name: value for name, value in named.items() if value is not None})

    def tick(self) -> None:
        """Take the threads' samples since the last call, and check the calls that they wait for."""
        now = time.monotonic()
        self._know_ranks(now)
        for guard, call in (
            (self._poll_guard, self._poller.polling),
            (self._event_guard, self._poller.listening),
        ):
            for hanging in guard.check(call, now, _MAY_TAKE_S.get(call.name, 0.0) if call is not None else 0.0):
                changes = self._changes_of(hanging.gpu) if hanging.gpu else self._unplaced
                self._report(hanging.gpu, changes.hanging(hanging, now))
        while self._poller.samples:
            self._take(self._poller.samples.popleft(), now)
        self._xids.with_lines = self._kernel_log()
        while self._poller.events:
            event = self._poller.events.popleft()
            if event.xid is not None:
                self._xids.nvml(event.gpu, event.xid, now)
        for xid in self._xids.due(now):
            change = Change("xid", "event", xid.facts, xid.line or f"Xid {xid.facts['xid']}")
            self._report(xid.gpu, self._changes_of(xid.gpu).limited(change, now))
        self._report_note()
        self._report_inventory(now)

    # --- samples ---------------------------------------------------------------------------------------------------

    def _take(self, sample: NodeSample, now: float) -> None:
        self._sample, self._sampled_at = sample, time.time()
        fresh = {what: why for what, why in self._gaps.items() if what == "gpu_ecc" and sample.visible}
        if any(gpu.dear for gpu in sample.samples.values()):
            fresh = {}
        self._gaps = fresh | sample.blind
        row: dict[str, float] = {}
        for key, seen in sample.samples.items():
            gpu = sample.gpus[key]
            for pid in self._placed.keys() & (seen.pids or {}).keys():
                self._placed[pid][key] = (seen.pids or {})[pid]
            self._report(key, self._changes_of(key).compare(gpu, seen))
            row |= row_of(gpu, seen, self._times.setdefault(key, {}))
        for key in [key for key in self._changes if index_of_mute(key) is not None and key not in sample.gpus]:
            self._report(key, self._changes.pop(key).answers(now))
        for key in sample.missing:
            self._report(key, self._changes_of(key).missing(now))
        if row:
            self._row(row)

    def _know_ranks(self, now: float) -> None:
        """Ask for the GPUs of new processes; the answer outlives the process."""
        pids = [rank.pid for rank in self._ranks()]
        self._since = {pid: self._since.get(pid, now) for pid in pids}
        self._placed = {pid: self._placed.get(pid, {}) for pid in pids}
        fresh = [pid for pid in pids if not self._placed[pid] and now - self._since[pid] < PIDS_WANTED_S]
        self._poller.wants_pids = bool(fresh)

    def _changes_of(self, key: str) -> GpuChanges:
        return self._changes.setdefault(key, GpuChanges())

    def _report(self, key: str, changes: Iterable[Change]) -> None:
        gpu = self._sample.gpus.get(key)
        for change in changes:
            data: dict[str, Any] = {name: getattr(gpu, name, None) for name in ("uuid", "bus_id", "name")}
            data["index"] = index_of_mute(key) if gpu is None else gpu.index
            data["ranks"] = [] if gpu is None else self._ranks_on().get(gpu.key, [])
            self._emit("gpu", data | change._asdict())

    # --- place of ranks ----------------------------------------------------------------------------------------------

    def _device(self, pid: int, local_rank: int | None) -> GpuInfo | None:
        gpus = list(self._sample.gpus.values())
        return device_for(gpus, self._placed.get(pid, {}), local_rank, visible_devices(pid)) if gpus else None

    def _ranks_on(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for rank in self._ranks():
            gpu = self._device(rank.pid, rank.local_rank)
            if gpu is not None:
                found.setdefault(gpu.key, []).append(rank.rank)
        return {key: sorted(ranks) for key, ranks in found.items()}

    def _report_note(self) -> None:
        reading = self.reading
        note = (bool(reading["visible"]), str(reading["text"]))
        if self._sampled_at is not None and note != self._note:
            self._note = note
            self._emit("gpu_note", {"visible": note[0], "text": note[1]})

    def _report_inventory(self, now: float) -> None:
        sample = self._sample
        if self._note is None:
            return
        ranks = self._ranks_on()
        inventory = (sample.visible, sample.driver, tuple(sample.gpus.values()), sample.missing, ranks)
        if inventory != self._inventory:
            self._inventory, self._inventory_since = inventory, now
        if inventory == self._inventory_reported or now - self._inventory_since < INVENTORY_SETTLES_S:
            return
        if self._inventories.take(now) is None:
            return
        self._inventory_reported = inventory
        gpus = [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "bus_id": gpu.bus_id,
                "serial": gpu.serial,
                "memory_mib": gpu.memory_mib,
                "mig": list(gpu.mig),
                "missing": key in sample.missing,
                "ranks": ranks.get(key, []),
            }
            for key, gpu in sample.gpus.items()
        ]
        gpus.sort(key=lambda gpu: gpu["index"])  # type: ignore[arg-type,return-value]
        self._emit("gpu_inventory", {"driver": sample.driver, "gpus": gpus, "text": sample.text})
