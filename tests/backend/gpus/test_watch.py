"""One physical fault of a GPU is one finding, told in words that blame the right thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.acting.commands.restart_plan import RestartFacts, make_plan
from stabilitybackend.fleet.gpu_history import GpuFaultHistory
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.gpus import watch as gpu_watch
from stabilitybackend.judging.gpus.view import gpus_view
from stabilitybackend.judging.gpus.watch import QUIET_S, SEEN_AGAIN_AFTER_S, GpuWatch
from stabilitybackend.judging.gpus.xids import table, xid_of
from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.schema.events import read_event
from stabilitybackend.schema.fleet import RunNames
from stabilitybackend.schema.reading import Misfit
from stabilityclient.wire import EventBlock, SourceInfo
from support.gpu_events import Node
from support.saved_state import taken_over


def _told(watch: GpuWatch, *events: dict[str, Any], step: int = 100) -> dict[str, Finding]:
    """Return the newest finding of each key."""
    return {finding.key: finding for event in events for finding in watch.event(event, step)}


def _only(found: dict[str, Finding]) -> Finding:
    (finding,) = found.values()
    return finding


@pytest.fixture
def node() -> Node:
    return Node(first_rank=16)


@pytest.fixture
def watch(node: Node) -> GpuWatch:
    watch = GpuWatch()
    watch.event(node.inventory(0.0), -1)
    return watch


def test_the_signs_of_one_memory_error_are_one_fault_whose_root_is_no_symptom(watch: GpuWatch, node: Node) -> None:
    found = _only(
        _told(
            watch,
            node.xid(2, 45, 10.0),
            node.xid(2, 48, 10.4),
            node.xid(2, 63, 11.0),
            node.sees(2, "ecc_uncorrected", 70.0, added=2, total=2),
            node.sees(2, "remap_pending", 200.0, "on"),
        )
    )
    assert (found.severity, found.state, found.rank, found.node) == ("critical", "open", 18, "gpu-03")
    assert found.title.startswith("GPU 2 of gpu-03: Xid 48")
    assert (found.evidence["class"], found.evidence["xids"]) == ("reset", [45, 48, 63])
    assert found.evidence["gpu"]["uuid"] == "GPU-gpu-03-2"
    assert "reset" in found.text


def test_the_same_gpu_may_have_two_faults_and_two_gpus_never_share_one(watch: GpuWatch, node: Node) -> None:
    found = _told(
        watch,
        node.xid(2, 48, 10.0),
        node.xid(3, 48, 11.0),
        node.xid(2, 74, 500.0),
        node.sees(2, "throttle", 12.0, "on", reason="hw_thermal", share=0.4),
    )
    assert [finding.title.split(":")[0] for finding in found.values()] == [
        "GPU 2 of gpu-03", "GPU 3 of gpu-03", "GPU 2 of gpu-03", "GPU 2 of gpu-03",
    ]  # fmt: skip


def test_what_the_driver_asks_for_counts_more_than_the_table(watch: GpuWatch, node: Node) -> None:
    found = _told(watch, node.xid(1, 48, 10.0), node.sees(1, "recovery_action", 40.0, "on", action=2))
    asked = {name: _only(found).evidence[name] for name in ("class", "recovery_action", "driver_asks")}
    assert asked == {"class": "reboot", "recovery_action": 2, "driver_asks": "reboot the node"}
    assert "NVIDIA's driver itself asks: reboot the node." in _only(found).text


def test_a_gpu_that_may_end_its_work_before_its_reset_stops_nothing(watch: GpuWatch, node: Node) -> None:
    found = _only(_told(watch, node.xid(1, 63, 10.0), node.sees(1, "recovery_action", 40.0, "on", action=4)))
    assert (found.severity, found.evidence["class"]) == ("warning", "reset")
    assert "NVIDIA's driver itself asks: let its work end, then reset the GPU." in found.text


def test_a_fault_that_needs_a_reset_is_over_when_the_driver_asks_for_nothing_any_more(
    watch: GpuWatch, node: Node
) -> None:
    _told(watch, node.xid(1, 48, 10.0), node.sees(1, "recovery_action", 40.0, "on", action=1))
    assert watch.tick(10_000.0) == []
    found = _told(watch, node.sees(1, "recovery_action", 90.0, "off", action=0))
    assert _only(found).state == "resolved"


@pytest.mark.parametrize(
    ("signs", "root", "family"),
    [
        ([("xid", {"xid": 31}), ("lost", {})], "lost", "bus"),
        ([("xid", {"xid": 31}), ("ecc_uncorrected", {"added": 1})], "ecc_uncorrected", "hbm"),
        ([("xid", {"xid": 63}), ("xid", {"xid": 79})], "xid:79", "bus"),
        ([("xid", {"xid": 63}), ("nvlink", {"down": [2]})], "nvlink:down", "link"),
        ([("xid", {"xid": 44}), ("xid", {"xid": 119})], "xid:119", "processor"),
        ([("xid", {"xid": 95}), ("xid", {"xid": 79}), ("lost", {})], "xid:95", "hbm"),
        ([("lost", {}), ("xid", {"xid": 63})], "xid:63", "hbm"),
        ([("remap_pending", {}), ("xid", {"xid": 13})], "remap_pending", "hbm"),
        ([("recovery_action", {"action": 1}), ("xid", {"xid": 109})], "xid:109", "software"),
    ],
)
def test_a_fault_is_called_by_what_the_hardware_says_and_by_the_grave_before_the_harmless(
    watch: GpuWatch, node: Node, signs: list[tuple[str, dict[str, Any]]], root: str, family: str
) -> None:
    for at, (what, facts) in enumerate(signs):
        watch.event(node.sees(2, what, 10.0 + 5 * at, "event" if what == "xid" else "on", **facts), 100)
    (fault,) = watch.faults
    assert (fault.root.name, fault.family) == (root, family)


def test_gpus_of_one_node_that_go_together_are_one_fault_of_the_node(watch: GpuWatch, node: Node) -> None:
    found = _told(
        watch,
        node.xid(4, 79, 10.0),
        node.sees(4, "lost", 12.0, "on"),
        node.sees(5, "lost", 30.0, "on"),
        node.sees(6, "lost", 85.0, "on"),
    )
    assert _only(found).title == "3 GPUs of gpu-03: lost within a minute of each other"
    assert [gpu["index"] for gpu in _only(found).evidence["gpus"]] == [4, 5, 6]
    assert _only(found).evidence["ranks"] == [20, 21, 22]
    later = _told(watch, node.sees(7, "lost", 300.0, "on"))
    assert _only(later).title.startswith("GPU 7 of gpu-03")


def test_an_error_of_the_application_blames_no_gpu_until_it_keeps_coming_on_the_same_one(
    watch: GpuWatch, node: Node
) -> None:
    first = _only(_told(watch, node.xid(0, 31, 10.0)))
    assert (first.severity, first.evidence["class"], first.evidence["blames_hardware"]) == (
        "warning", "application", False,
    )  # fmt: skip
    assert "does not blame the GPU" in first.text
    others = _told(watch, *(node.xid(gpu, 31, 20.0 + gpu) for gpu in range(1, 5)))
    assert {finding.evidence["blames_hardware"] for finding in others.values()} == {False}
    again = _told(watch, *(node.xid(0, 31, at) for at in (2_000.0, 4_000.0, 6_000.0)))
    assert [f.evidence["class"] for f in again.values()][-1] == "drain"
    assert "It came 4 times on this GPU" in [*again.values()][-1].text


def test_a_bug_that_meets_all_gpus_at_each_start_blames_none_of_them(watch: GpuWatch, node: Node) -> None:
    starts = [_told(watch, *(node.xid(gpu, 31, at + gpu) for gpu in range(8))) for at in range(10, 1_000, 90)]
    assert {found.evidence["blames_hardware"] for told in starts for found in told.values()} == {False}


def test_one_failure_of_a_program_is_one_however_many_lines_the_driver_writes(watch: GpuWatch, node: Node) -> None:
    for at in range(10, 40, 5):
        watch.event(node.sees(0, "xid", float(at), xid=13, source="nvml", repeats=500), 100)
    assert [fault.suspected for fault in watch.faults] == [False]


def test_a_gpu_suspected_first_is_acquitted_when_the_programs_fail_on_another_too(watch: GpuWatch, node: Node) -> None:
    first = _told(watch, *(node.xid(0, 31, at) for at in (10.0, 100.0, 200.0, 300.0)))
    assert [*first.values()][-1].evidence["blames_hardware"] is True
    late = _told(watch, *(node.xid(1, 31, at) for at in (301.0, 320.0, 340.0)))
    assert {found.evidence["blames_hardware"] for found in late.values()} == {False}
    assert {found.evidence["gpu"]["index"] for found in late.values()} == {0, 1}


def test_a_job_of_one_gpu_has_no_other_to_compare_it_with() -> None:
    node, watch = Node(gpus=1), GpuWatch()
    watch.event(node.inventory(0.0), 5)
    found = _told(watch, *(node.xid(0, 31, at) for at in range(10, 1_000, 100)))
    assert {one.evidence["blames_hardware"] for one in found.values()} == {False}


@pytest.mark.parametrize("number", [13, 31, 45, 43, 68, 109])
def test_no_application_xid_is_critical(watch: GpuWatch, node: Node, number: int) -> None:
    found = _told(watch, node.xid(0, number, 10.0))
    assert {finding.severity for finding in found.values()} <= {"warning", "info"}
    assert {finding.evidence["blames_hardware"] for finding in found.values()} <= {False}


def test_a_symptom_alone_is_no_incident_but_stands_with_its_gpu(watch: GpuWatch, node: Node) -> None:
    assert _told(watch, node.xid(0, 45, 10.0)) == {}
    (fault,) = gpus_view(watch, [], lambda uuid: None, lambda node: {})[0].faults
    assert (fault.class_, fault.xids, fault.incident_id) == ("symptom", [45], None)


def test_a_line_of_the_kernel_finds_its_gpu_by_the_bus(watch: GpuWatch, node: Node) -> None:
    line = node.kernel("xid", 10.0, "NVRM: Xid (PCI:0000:1e:00): 119, ...", bus_id="0000:1e:00", xid=119)
    found = _only(_told(watch, line, node.xid(3, 119, 11.0)))
    assert (found.evidence["gpu"]["uuid"], found.evidence["xids"]) == ("GPU-gpu-03-3", [119])
    assert watch.event(node.kernel("edac", 12.0, "EDAC MC0: 1 UE"), 100) == []
    assert [line.what for line in watch.kernel_lines] == ["edac"]


def test_a_line_of_the_kernel_about_no_gpu_is_kept_with_the_process_that_it_names(watch: GpuWatch, node: Node) -> None:
    watch.event(node.kernel("oom", 12.0, "Out of memory: Killed process 7 (python)", pid=7), 100)
    watch.event(node.kernel("oom", 13.0, "Out of memory: ..."), 100)
    assert [line.pid for line in watch.kernel_lines] == [7, None]


@pytest.mark.parametrize("known", [True, False])
def test_a_gpu_of_another_job_on_the_node_is_told_without_an_alarm(known: bool) -> None:
    node, watch = Node(gpus=4), GpuWatch()
    inventory = node.inventory(0.0, without=[] if known else [3])
    for gpu in inventory.data["gpus"][2:]:
        gpu["ranks"] = []
    watch.event(inventory, 5)
    lost = node.kernel("xid", 10.0, "Xid (PCI:0000:1e:00): 79, fallen off the bus", xid=79, bus_id="0000:1e:00")
    (fault,) = watch.event(lost, 5)
    assert (fault.severity, fault.rank, fault.evidence["foreign"]) == ("info", None, True)
    assert "No rank of this job is on it" in fault.text
    (incident,) = IncidentBook("r").apply(fault, segment=0, time=10.0, checkpoints=UsableOf([]))
    assert incident.suggestion.action == "none"
    assert GpuFaultHistory().add(incident, RunNames("r")) == []
    job = RestartFacts("running", "", [incident], [], ["gpu-03"], 0)
    plan = make_plan("r", job, 11.0)
    assert plan.suspects == plan.exclude_nodes == []
    assert gpus_view(watch, [], lambda uuid: None, lambda node: {})[-1].state == "lost"
    told = watch.event(node.inventory(20.0), 5)  # the agent has found out whose it is
    assert [(one.severity, one.rank, one.key) for one in told] == ([("critical", 3, fault.key)] if known else [])


def test_where_no_rank_is_mapped_to_a_gpu_every_fault_of_the_node_counts() -> None:
    node, watch = Node(gpus=2), GpuWatch()
    inventory = node.inventory(0.0)
    for gpu in inventory.data["gpus"]:
        gpu["ranks"] = []
    watch.event(inventory, 5)
    event = node.xid(1, 79, 10.0)
    event.data["ranks"] = []
    assert [fault.severity for fault in watch.event(event, 5)] == ["critical"]


def test_a_driver_that_hangs_for_the_whole_node_is_a_fault_of_the_node_and_no_gpu_more(
    watch: GpuWatch, node: Node
) -> None:
    hangs = node.sees(0, "call_hangs", 10.0, "on", call="nvmlDeviceGetCount_v2", seconds=12.0)
    hangs.data.update({"uuid": None, "index": None, "bus_id": None, "name": None, "ranks": []})
    found = _only(_told(watch, hangs))
    assert (found.severity, found.node, found.title.startswith("A GPU of gpu-03: ")) == ("critical", "gpu-03", True)
    assert len(gpus_view(watch, [], lambda uuid: None, lambda node: {})) == node.gpus
    assert _only(_told(watch, replace(hangs, data={**hangs.data, "state": "off"}))).state == "resolved"


def test_a_new_agent_that_sees_nothing_wrong_ends_the_fault_and_one_that_does_keeps_it(
    watch: GpuWatch, node: Node
) -> None:
    _told(watch, node.xid(1, 48, 10.0), node.xid(2, 95, 10.0), node.sees(2, "recovery_action", 20.0, "on", action=1))
    after = node.restarted()
    _told(watch, after.inventory(100.0), after.sees(2, "recovery_action", 101.0, "on", action=1))
    assert watch.tick(1_000.0) == []
    (over,) = watch.tick(1_000.0 + SEEN_AGAIN_AFTER_S)
    assert (over.state, over.evidence["gpu"]["index"]) == ("resolved", 1)
    assert [gpu.state for gpu in gpus_view(watch, [], lambda uuid: None, lambda node: {})][:3] == [
        "ok",
        "ok",
        "sick",
    ]


def test_a_gpu_with_errors_from_before_its_agent_is_sick_by_what_is_read(watch: GpuWatch) -> None:
    read = {"2": {"ecc_uncorrected": 1.0}, "3": {"ecc_uncorrected": 0.0}}
    gpus = gpus_view(watch, [], lambda uuid: None, {"gpu-03": read}.__getitem__)
    assert [gpu.state for gpu in gpus][2:5] == ["sick", "ok", "ok"]


def test_a_fault_is_over_for_a_job_that_moved_to_other_gpus(watch: GpuWatch, node: Node) -> None:
    _told(watch, node.xid(1, 48, 10.0))
    found = _told(watch, Node("gpu-99", first_rank=16).inventory(500.0))
    assert (_only(found).state, "other GPUs" in _only(found).text) == ("resolved", True)


def test_a_fault_without_need_of_a_reset_is_over_after_some_quiet(watch: GpuWatch, node: Node) -> None:
    key = _only(_told(watch, node.xid(0, 31, 10.0))).key
    assert watch.tick(10.0 + QUIET_S) == []
    (over,) = watch.tick(11.0 + QUIET_S)
    assert (over.key, over.state) == (key, "resolved")


def test_a_condition_that_ends_ends_its_fault(watch: GpuWatch, node: Node) -> None:
    hot = {"reason": "hw_thermal", "share": 0.3}
    _told(watch, node.sees(0, "throttle", 10.0, "on", **hot))
    assert watch.tick(100_000.0) == []
    assert _only(_told(watch, node.sees(0, "throttle", 900.0, "off", **hot))).state == "resolved"


def test_what_is_told_of_a_fault_never_seems_older_than_what_was_told_before(watch: GpuWatch, node: Node) -> None:
    first = _only(_told(watch, node.xid(0, 48, 10.0), step=1_000))
    after_rollback = _only(_told(watch, node.sees(0, "recovery_action", 20.0, "on", action=1), step=500))
    assert after_rollback.now_step >= first.now_step


#: What stands where something else is expected; whoever reads an event has met each of these.
_JUNK: list[Any] = [
    None,
    True,
    -1,
    3,
    10**20,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    [],
    [1, "x", None],
    {},
    {"xid": 48},
]
_ANY = st.sampled_from(_JUNK)
_WORDS = st.sampled_from(["xid", "lost", "nvlink", "throttle", "recovery_action", "temperature", "nonsense"])
_FACTS = st.fixed_dictionaries(
    {}, optional={"xid": st.sampled_from([45, 48, 31, None, "x"]), "action": _ANY, "share": _ANY}
)
_DATA = st.fixed_dictionaries(
    {"what": _WORDS | _ANY, "state": st.sampled_from(["on", "off", "event", None]), "facts": _FACTS | _ANY},
    optional={"uuid": st.sampled_from(["GPU-1", "", 7]), "index": _ANY, "bus_id": _ANY, "ranks": _ANY, "gpus": _ANY},
)
_TIMES = st.sampled_from([0.0, 5.0, 70.0, -1e300])
_EVENTS = st.lists(st.tuples(st.sampled_from(["gpu", "gpu_inventory", "kernel"]), _DATA, _TIMES), max_size=10)


def _read(kind: str, data: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the door makes of an event's data, None where it is nothing of its type."""
    try:
        return read_event(EventBlock(kind, 0.0, None, data))[0].data
    except Misfit:
        return None


@settings(max_examples=60, deadline=None)
@given(events=_EVENTS, cut=st.integers(0, 10))
def test_whatever_agents_send_nothing_raises_and_a_restart_in_between_changes_nothing(
    events: list[tuple[str, dict[str, Any], float]], cut: int
) -> None:
    told = [
        LineageEvent(SourceInfo("a1", node="n"), 0, kind, time, None, read)
        for kind, data, time in events
        if (read := _read(kind, data)) is not None
    ]
    whole, before, after = GpuWatch(), GpuWatch(), GpuWatch()
    expected = [finding for event in told for finding in whole.event(event, 5)]
    found = [finding for event in told[:cut] for finding in before.event(event, 5)]
    taken_over(before, after)
    found += [finding for event in told[cut:] for finding in after.event(event, 5)]
    assert repr(found) == repr(expected)
    assert repr(after.tick(1e12)) == repr(whole.tick(1e12))
    gpus_view(after, [], lambda uuid: None, lambda node: {})


def test_a_storm_of_faults_is_bounded_and_open_ones_stay(
    watch: GpuWatch, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_watch, "MAX_FAULTS", 8)
    for at in range(20):
        watch.event(node.sees(1, "throttle", 100.0 * at, "on", reason="hw_thermal"), 5)
        watch.event(node.sees(1, "throttle", 100.0 * at + 1, "off", reason="hw_thermal"), 5)
        watch.event(node.xid(2, 48, 100.0), 5)
    assert len(watch.faults) == 8
    assert [fault.xids for fault in watch.faults if fault.over is None] == [[48]]


def test_lines_about_ever_new_buses_fill_no_memory(watch: GpuWatch, node: Node) -> None:
    for at in range(500):
        watch.event(node.kernel("xid", 1.0, "Xid", xid=48, bus_id=f"{at:04x}:1b:00"), 5)
    assert (len(list(watch.devices)), watch.not_followed) == (128, 379)


def test_the_table_has_every_number_once_and_a_foreign_one_is_said_to_be_unknown() -> None:
    numbers = [row.number for row in table()]
    assert numbers == sorted(set(numbers))
    assert {8, 13, 31, 43, 45, 48, 62, 63, 64, 74, 79, 94, 95, 109, 119, 120, 140, 143, 154, 172} <= set(numbers)
    assert all(row.cls in ("application", "symptom", "watch") or row.critical for row in table())
    assert "does not have" in xid_of(999).meaning
