"""Turns samples of one GPU into reports: conditions that begin and end, and counters that grew.

Facts and changes only; their meaning is the server's to decide. A condition from before the agent's start is
reported once, a counter only by its growth since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from stabilityclient.agent.gpu.calls import Hanging
from stabilityclient.agent.gpu.conditions import CONDITIONS
from stabilityclient.agent.gpu.samples import GpuInfo, GpuSample

__all__ = ["EVENTS_AT_ONCE", "Budget", "Change", "GpuChanges"]

#: Events a minute in the long run, and in one burst after a quiet time.
EVENTS_A_MINUTE = 30.0
EVENTS_AT_ONCE = 30.0
#: Share of the time since the last sample at lowered clocks from which it is reported, and below which it has ended.
THROTTLED_SHARE = 0.05
THROTTLED_OVER_SHARE = 0.025
#: Samples in a row below THROTTLED_OVER_SHARE after which it has ended: clocks go up and down by the second.
THROTTLED_OVER_SAMPLES = 3
#: Degrees below its limit at which a temperature is no longer too high.
COOLER_C = 3.0
#: Seconds between two reports of PCIe replays of one GPU.
REPLAYS_QUIET_S = 600.0
#: PCIe replays a minute from which they are reported. Source: DCGM_LIMIT_MAX_PCIREPLAY_RATE
#: (dcgm_gpu_hardware_limits.h).
REPLAYS_A_MINUTE = 8.0
#: Slow samples kept for the NVLink rule, and how many of them must show new errors: single ones are daily business.
#: Source: NVIDIA Resiliency Extension, NVLinkWindowHealthCheck (a port is bad with more than 15 of the last 30).
LINK_WINDOWS, LINK_BAD_WINDOWS, LINK_GOOD_WINDOWS = 30, 15, 5
#: Seconds of silence after which a name is reported even in a storm: the one Xid that matters comes among
#: thousands.
NEWS_S = 60.0
#: Different things of one GPU whose last report is remembered; there are some 170 Xids.
MAX_NEWS = 256
#: Utilisation in percent from which a PCIe link has to run at full speed: an idle GPU saves power there.
BUSY_PCT = 50.0

#: Bits of ``throttle_reasons`` (nvmlClocksEventReason*), for GPUs without time counters.
_HW_SLOWDOWN, _BITS = 0x8, {"sw_thermal": 0x20, "hw_thermal": 0x40, "power_brake": 0x80}
#: NVML_GPU_RECOVERY_ACTION_*.
_ACTIONS = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain peer-to-peer traffic",
    4: "drain and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the GPU's bus",
    7: "reboot the system",
}
_REASONS = {
    "hw_thermal": "the hardware lowers the clocks because of heat",
    "sw_thermal": "the driver lowers the clocks because of heat",
    "power_brake": "the power supply asks for lower clocks",
    "hw_slowdown": "the hardware lowers the clocks",
}


class Budget:
    """How many events one thing may give: a bucket that fills with time.

    Attributes:
        suppressed: all that were refused.
    """

    def __init__(self, a_minute: float = EVENTS_A_MINUTE, at_once: float = EVENTS_AT_ONCE) -> None:
        self.suppressed = 0
        self._a_minute = a_minute
        self._at_once = at_once
        self._left = at_once
        self._at: float | None = None
        self._refused = 0

    def take(self, now: float) -> int | None:
        """Return how many were refused since the last one that was not; None: this one is refused too.

        Args:
            now: monotonic seconds.
        """
        if self._at is not None:
            self._left = min(self._at_once, self._left + max(0.0, now - self._at) * self._a_minute / 60.0)
        self._at = now
        if self._left < 1.0:
            self._refused += 1
            self.suppressed += 1
            return None
        self._left -= 1.0
        refused, self._refused = self._refused, 0
        return refused


class Change(NamedTuple):
    """One thing to report: ``what``, ``state`` (``on``, ``off``, ``event``), its facts, one clause."""

    what: str
    state: str
    facts: dict[str, Any]
    text: str


class _GpuCounter:
    """A counter of the GPU: its growth since the last report."""

    def __init__(self, value: float, now: float) -> None:
        self.value = value
        self.added = 0.0
        self.since = now
        self._fell = False

    def take(self, value: float) -> float:
        """Return the growth since the last value.

        A counter that is lower in two samples began again with its driver: all that it has is new. One lower in a
        single sample was read wrongly.
        """
        if value < self.value and not self._fell:
            self._fell = True
            return 0.0
        self._fell = False
        step = value if value < self.value else value - self.value
        self.value = value
        self.added += step
        return step


class GpuChanges:
    """Reports of one GPU."""

    def __init__(self) -> None:
        self._on: dict[str, tuple[float, Any]] = {}
        self._counters: dict[str, _GpuCounter] = {}
        self._calm: dict[str, int] = {}
        self._seen_twice: dict[str, int] = {}
        self._links: set[int] = set()
        self._link_windows: deque[bool] = deque(maxlen=LINK_WINDOWS)
        self._times: dict[str, tuple[float, float]] = {}
        self._budget = Budget()
        self._last: dict[str, float] = {}
        self._found: list[Change] = []
        self._now = 0.0

    @property
    def suppressed(self) -> int:
        """Return how many changes were not reported because there were too many."""
        return self._budget.suppressed

    def compare(self, gpu: GpuInfo, sample: GpuSample) -> list[Change]:
        """Return the changes of a sample."""
        self._begin(sample.time)
        fault = sample.fault
        facts = {} if fault is None else {"call": fault.call, "error": fault.text}
        why = "" if fault is None else f" ({fault.call}: {fault.text})"
        lost = fault is not None and fault.what == "lost"
        self._latch("lost", lost, facts, f"does not answer any more{why}", "answers again")
        if not lost:
            self._latch("reset_required", fault is not None, facts, f"needs a reset{why}", "needs no reset any more")
            self._throttle(sample)
            self._temperatures(gpu, sample)
            if sample.dear:
                self._memory(sample.values)
                self._links_of(sample)
                self._recovery(sample.values)
        return self._found

    def missing(self, now: float) -> list[Change]:
        """Return the report of a GPU that NVML does not count any more."""
        self._begin(now)
        self._latch("lost", True, {"why": "not counted"}, "NVML does not count it any more", "")
        return self._found

    def answers(self, now: float) -> list[Change]:
        """Return the report of a GPU identified at last: from now on it is reported by its UUID."""
        self._begin(now)
        self._latch("lost", False, {}, "", "answers again")
        return self._found

    def hanging(self, hanging: Hanging, now: float) -> list[Change]:
        """Return the report of a call that hangs, or has returned."""
        self._begin(now)
        facts = {"call": hanging.name, "seconds": round(hanging.seconds, 1)}
        text = f"{hanging.name} has not come back for {hanging.seconds:.0f} s"
        self._latch("call_hangs", not hanging.over, facts, text, f"{hanging.name} came back")
        return self._found

    def limited(self, change: Change, now: float) -> list[Change]:
        """Return a change from another source (an Xid), unless there were too many."""
        self._begin(now)
        self._report(change.what, change.state, change.facts, change.text, f"{change.what}:{change.facts.get('xid')}")
        return self._found

    # --- rules -----------------------------------------------------------------------------------------------------

    def _throttle(self, sample: GpuSample) -> None:
        bits = sample.values.get("throttle_reasons")
        for reason, bit in _BITS.items():
            counted = sample.values.get(f"{reason}_ns")
            if counted is not None:
                before = self._times.get(reason)
                self._times[reason] = (sample.time, counted)
                if before is None or counted < before[1] or sample.time <= before[0]:
                    continue
                share = (counted - before[1]) / 1e9 / (sample.time - before[0])
                self._slowed(reason, share >= THROTTLED_SHARE, share < THROTTLED_OVER_SHARE, min(1.0, share))
            elif bits is not None:
                self._slowed(reason, self._twice(reason, bool(int(bits) & bit)), not int(bits) & bit, None)
        if bits is not None:
            # The general bit is set together with that of heat or power; alone it is the hardware's own reason.
            alone = bool(int(bits) & _HW_SLOWDOWN) and not int(bits) & (_BITS["hw_thermal"] | _BITS["power_brake"])
            self._slowed("hw_slowdown", self._twice("hw_slowdown", alone), not alone, None)

    def _slowed(self, reason: str, on: bool, over: bool, share: float | None) -> None:
        name = f"throttle:{reason}"
        self._calm[reason] = self._calm.get(reason, 0) + 1 if over else 0
        stays = name in self._on and self._calm[reason] < THROTTLED_OVER_SAMPLES
        facts = {"reason": reason, "share": None if share is None else round(share, 3)}
        part = "" if share is None else f", {100 * share:.0f} % of the time"
        text = f"{_REASONS[reason]}{part}"
        self._latch("throttle", on or stays, facts, text, f"no longer: {_REASONS[reason]},", name=name)

    def _temperatures(self, gpu: GpuInfo, sample: GpuSample) -> None:
        for sensor, field, limit in (("gpu", "temp_c", gpu.limit_c), ("memory", "mem_temp_c", gpu.memory_limit_c)):
            value, name = sample.values.get(field), f"temperature:{sensor}"
            if value is None or limit is None:
                continue
            hot = value >= limit or (name in self._on and value > limit - COOLER_C)
            facts = {"sensor": sensor, "temp_c": value, "limit_c": limit}
            text = f"{'memory' if sensor == 'memory' else 'GPU'} at {value:.0f} °C, its limit is {limit:.0f} °C"
            self._latch("temperature", hot, facts, text, f"{sensor} cooled to {value:.0f} °C", name=name)

    def _memory(self, values: Mapping[str, float]) -> None:
        for what, _, text, counts, quiet_s in CONDITIONS.values():
            if counts:
                self._grew(what, values.get(what), text, quiet_s)
            elif what in values:
                self._latch(what, values[what] > 0, {}, text, "over")
        self._grew("retired_pages", values.get("retired_pages"), "memory page{} taken out of use", 0.0)
        if "sram_threshold" in values:
            text = "too many errors in the memory inside the chip"
            self._latch("sram_threshold", values["sram_threshold"] > 0, {}, text, "over")
        if "retired_pending" in values:
            facts = {"pending": True, "pages": values.get("retired_pages")}
            text = "memory pages are taken out of use with the next reset"
            self._latch("retired_pages", values["retired_pending"] > 0, facts, text, "over", name="retired_pending")

    def _recovery(self, values: Mapping[str, float]) -> None:
        if "recovery_action" not in values:
            return
        action = int(values["recovery_action"])
        text = f"the driver asks: {_ACTIONS.get(action, f'recovery action {action}')}"
        self._latch("recovery_action", action != 0, {"action": action}, text, "asks for nothing any more", action)

    def _links_of(self, sample: GpuSample) -> None:
        values = sample.values
        if sample.links_up is not None:
            self._links |= sample.links_up
            down = sorted(self._links - sample.links_up)
            text = f"NVLink {', '.join(str(link) for link in down)} is down"
            facts = {"down": down, "up": len(sample.links_up)}
            self._latch("nvlink", bool(down), facts, text, "all links are up again", down, name="nvlink:down")
        if "nvlink_errors" in values:
            counter = self._counters.setdefault("nvlink", _GpuCounter(values["nvlink_errors"], sample.time))
            self._link_windows.append(counter.take(values["nvlink_errors"]) > 0)
            bad = sum(self._link_windows)
            on = bad > (LINK_GOOD_WINDOWS if "nvlink:errors" in self._on else LINK_BAD_WINDOWS)
            facts = {"errors": counter.added, "total": counter.value, "windows": bad}
            text = f"NVLink errors in {bad} of the last {len(self._link_windows)} samples"
            self._latch("nvlink", on, facts, text, "no NVLink errors any more", name="nvlink:errors")
        self._pcie(sample)

    def _pcie(self, sample: GpuSample) -> None:
        values = sample.values
        if "pcie_replays" in values:
            counter = self._counters.setdefault("pcie_replay", _GpuCounter(values["pcie_replays"], sample.time))
            before, quiet_until = self._times.get("pcie_replay", (sample.time, sample.time))
            added = counter.take(values["pcie_replays"])
            rate = added / max(1.0, sample.time - before) * 60.0
            if rate > REPLAYS_A_MINUTE and sample.time >= quiet_until:
                facts = {"added": counter.added, "total": counter.value, "a_minute": round(rate, 1)}
                if self._report("pcie_replay", "event", facts, f"{rate:.0f} PCIe replays a minute"):
                    counter.added, quiet_until = 0.0, sample.time + REPLAYS_QUIET_S
            self._times["pcie_replay"] = (sample.time, quiet_until)
        width, widest = values.get("pcie_width"), values.get("pcie_width_max")
        speed, fastest = values.get("pcie_gen"), values.get("pcie_gen_max")
        if width is None or widest is None or speed is None or fastest is None:
            return
        slow = width < widest or (speed < fastest and values.get("util_pct", 0.0) >= BUSY_PCT)
        facts = {"width": int(width), "width_max": int(widest), "gen": int(speed), "gen_max": int(fastest)}
        text = f"PCIe runs at {width:.0f} lanes, generation {speed:.0f}; it has {widest:.0f} and {fastest:.0f}"
        self._latch("pcie_link", self._twice("pcie_link", slow), facts, text, "PCIe is whole again")

    # --- reporting ---------------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        self._now = now
        self._found = []

    def _is_news(self, name: str) -> bool:
        """Whether this was not reported for a while; then it takes nothing from the allowance of a storm."""
        last = self._last.get(name)
        if last is None and len(self._last) >= MAX_NEWS:
            oldest = min(self._last, key=lambda known: self._last[known])
            if self._now - self._last[oldest] < NEWS_S:
                return False
            del self._last[oldest]
        if last is not None and self._now - last < NEWS_S:
            return False
        self._last[name] = self._now
        return True

    def _twice(self, name: str, seen: bool) -> bool:
        """Whether something sampled is so for the second sample in a row, or is on and still so."""
        self._seen_twice[name] = self._seen_twice.get(name, 0) + 1 if seen else 0
        return self._seen_twice[name] >= 2

    def _grew(self, what: str, value: float | None, noun: str, quiet_s: float) -> None:
        if value is None:
            return
        counter = self._counters.get(what)
        if counter is None:
            self._counters[what] = _GpuCounter(value, self._now)
            return
        counter.take(value)
        seconds = self._now - counter.since
        if not counter.added or seconds < quiet_s:
            return
        facts = {"added": counter.added, "total": value, "seconds": round(seconds, 1)}
        noun = noun.format("" if counter.added == 1 else "s")
        if self._report(what, "event", facts, f"{counter.added:.0f} {noun} in {seconds:.0f} s, {value:.0f} in all"):
            counter.added, counter.since = 0.0, self._now

    def _latch(
        self,
        what: str,
        on: bool,
        facts: dict[str, Any],
        text: str,
        over: str,
        value: Any = None,
        *,
        name: str = "",
    ) -> None:
        """Report when a condition begins, changes its ``value``, or ends; without a budget it stays as reported."""
        name = name or what
        before = self._on.get(name)
        if on and (before is None or before[1] != value):
            if self._report(what, "on", facts, text, name):
                self._on[name] = (self._now if before is None else before[0], value)
        elif not on and before is not None:
            seconds = self._now - before[0]
            if self._report(what, "off", {"seconds": round(seconds, 1)} | facts, f"{over} after {seconds:.0f} s", name):
                del self._on[name]

    def _report(self, what: str, state: str, facts: dict[str, Any], text: str, name: str = "") -> bool:
        more = 0 if self._is_news(f"{name or what} {state}") else self._budget.take(self._now)
        if more is None:
            return False
        self._found.append(Change(what, state, facts | {"suppressed": more} if more else facts, text))
        return True
