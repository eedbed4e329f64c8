"""The table of rollback costs says what each one cost, counts nothing twice, and never says less than nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from stabilitybackend.runs.derived.rollback_cost import rollback_costs_of
from stabilitybackend.runs.state import RunState
from stabilitybackend.storage.archive.series import Rows, SeriesKey
from stabilitybackend.storage.points.store import StoreView
from stabilityclient.wire import Frame, Health
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.jobs.job_stories import Story, stories, tell
from support.server_stack import RunningServer
from support.stops import NO_STOPS


def _run(*frames: Frame, undone: tuple[str, ...] = ()) -> RunState:
    state = RunState("run", lambda: 5_000.0, undone)
    for frame in frames:
        state.apply(frame, replayed=False)
    return state


def _costs(*frames: Frame, now: float = 5_000.0, undone: tuple[str, ...] = ()) -> dict[str, Any]:
    return _shown(_run(*frames, undone=undone), now)


def _shown(state: RunState, now: float) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(rollback_costs_of(state, now, NO_STOPS)())
    return found


class _Rank(Job):
    """A rank that logs one step a second; ``at`` sets its clock."""

    def at(self, seconds: float) -> _Rank:
        self._time = seconds
        return self

    def steps(self, first: int, last: int) -> Frame:
        """Log steps ``first..last``, the first of them one second from now."""
        frame = self.rows(range(first, last + 1))
        start = self._time - 0.1 * (last - first + 1)
        times = [start + 1.0 * (i + 1) for i in range(last - first + 1)]
        frame.blocks[0].times = np.array(times, "<f8").tobytes()  # type: ignore[union-attr]
        self._time = times[-1]
        return frame


def _story() -> tuple[_Rank, list[Frame]]:
    """Steps 1-100; back to 60; 61-90; back to 75 (in the second branch); 76-80; back to 30 (past both); 31-40.

    One second a step. Clock: the process starts at 1000, step 1 at 1011; each rollback takes 20, 30 and 40 s.
    """
    job = _Rank()
    frames = [job.at(1_010.0).steps(1, 100)]  # 1011 .. 1110
    frames += [job.at(1_119.99).rolled_back(60, "a", reason="spike", changes={"skip_batches": 500, "lr_scale": 0.5})]
    frames += [job.at(1_129.0).steps(61, 90)]  # 1130 .. 1159
    frames += [job.at(1_169.99).rolled_back(75, "b", command_id="c-1", issuer="ada")]
    frames += [job.at(1_188.0).steps(76, 80)]  # 1189 .. 1193
    frames += [job.at(1_209.99).rolled_back(30, "c")]
    frames += [job.at(1_232.0).steps(31, 40)]  # 1233 .. 1242
    return job, frames


ORDERED = {"skip_batches": 3, "lr_scale": 0.5}


@pytest.mark.parametrize(
    ("told", "applied", "skipped"),
    [(None, None, None), ({}, {}, None), (ORDERED, ORDERED, 3), ({"lr_scale": 0.5}, {"lr_scale": 0.5}, None)],
    ids=["nothing told", "none of it", "all of it", "a part"],
)
def test_what_was_ordered_is_done_only_by_the_word_of_the_job(told: Any, applied: Any, skipped: Any) -> None:
    job = _Rank()
    frames = [job.steps(1, 20), job.rolled_back(10, "c-1", command_id="c-1", changes=ORDERED)]
    frames.append(job.event("command", 20, command_id="c-1", state="acted", applied=told))
    [entry] = _costs(*frames, job.steps(11, 12))["rollbacks"]
    assert (entry["changes"], entry["applied"], entry["batches_skipped"]) == (ORDERED, applied, skipped)


def test_what_an_export_tells_of_a_rollback_is_what_was_done_then() -> None:
    job = _Rank()
    told = job.rolled_back(10, "c-1", command_id="c-1", changes=ORDERED, applied={"lr_scale": 0.5})
    [entry] = _costs(job.steps(1, 20), told, job.steps(11, 12))["rollbacks"]
    assert (entry["changes"], entry["applied"]) == (ORDERED, {"lr_scale": 0.5})


def test_ranks_that_changed_different_things_are_told_apart() -> None:
    ranks = [_Rank(0, world_size=2), _Rank(1, world_size=2)]
    frames = [job.steps(1, 20) for job in ranks]
    frames += [job.rolled_back(10, "c-1", command_id="c-1", changes=ORDERED) for job in ranks]
    said = ({"lr_scale": 0.5, "seed": 1}, {"lr_scale": 1.0, "seed": 1})
    frames += [
        job.event("command", 20, command_id="c-1", state="acted", applied=one)
        for job, one in zip(ranks, said, strict=True)
    ]
    [entry] = _costs(*frames)["rollbacks"]
    assert entry["applied"] == {"lr_scale": "differs between ranks", "seed": 1}


def test_a_story_with_nested_rollbacks_is_booked_as_by_hand() -> None:
    _, frames = _story()
    book = _costs(*frames, _story()[0].at(1_242.0).event("finish", 40))
    first, second, third = book["rollbacks"]
    names = ("segment", "parent", "fork_step", "last_dead_step", "steps_lost", "wall_lost_s", "downtime_s")
    costs = [tuple(entry[name] for name in names) for entry in book["rollbacks"]]
    assert costs == [
        (1, 0, 60, 100, 40, 40.0, 20.0),  # steps 61-100 of the root: 1070 .. 1110; 1110 .. 1130 down
        (2, 1, 75, 90, 15, 15.0, 30.0),  # steps 76-90 of the second: 1144 .. 1159; 1159 .. 1189 down
        # Root 31-60 (1040 .. 1070), second 61-75 (1130 .. 1144), third 76-80 (1189 .. 1193); 1193 .. 1233 down.
        (3, 0, 30, 80, 50, 30.0 + 14.0 + 4.0, 40.0),
    ]
    assert (first["reason"], first["batches_skipped"], first["applied"]["lr_scale"]) == ("spike", 500, 0.5)
    assert (second["cause"], second["command_id"], second["issuer"]) == ("command", "c-1", "ada")
    assert (third["cause"], third["batches_skipped"], third["incidents"]) == ("declared", 0, [])
    totals = book["totals"]
    assert (totals["rollbacks"], totals["steps_lost"], totals["batches_skipped"]) == (3, 105, 500)
    assert (totals["wall_lost_s"], totals["downtime_s"]) == (103.0, 90.0)


def test_the_time_of_a_run_is_effective_or_dead_or_idle() -> None:
    job, frames = _story()
    totals = _costs(*frames, job.event("finish", 40))["totals"]
    # 1011 .. 1242; effective: root 1-30 (29 s after its first row), fourth 31-40 (9 s); dead 103 s; the rest is idle.
    assert (totals["wall_s"], totals["effective_s"], totals["dead_s"], totals["idle_s"]) == (231.0, 38.0, 103.0, 90.0)
    assert totals["goodput"] == pytest.approx(38 / 231)
    # The process started at 1000, 11 s before its first row.
    assert (totals["startup_s"], totals["ettr"]) == (11.0, pytest.approx(38 / 242))


@pytest.mark.parametrize("end", ["process_death", "finish"])
def test_time_in_which_a_job_hung_stays_lost_when_it_is_dead(end: str) -> None:
    job, agent = _Rank().at(1_000.0), Job()
    agent.info.rank, agent.info.source = None, "a1"
    frames = [job.steps(1, 100), agent.event("checkpoint_seen", 1, path="/c", rank=0)]
    of_agent = {"rank": 0, "source": job.info.source, "cause": "signal", "signal": 9, "signal_name": "SIGKILL"}
    job.wait(300.0)
    agent.wait(job.now - agent.now)
    last = job.event(end, 100) if end == "finish" else agent.event(end, 100, **of_agent)
    state = _run(*frames, last)
    for now in (1_500.0, 9_000.0):
        totals = _shown(state, now)["totals"]
        assert totals["wall_s"] == pytest.approx(99 + 300, abs=1)
        assert totals["goodput"] == pytest.approx(99 / 399, abs=0.01)


def test_a_machine_without_a_gpu_has_no_gpu_hours() -> None:
    job, frames = _story()
    agent = Job()
    agent.info.rank, agent.info.source = None, "a1"
    book = _costs(*frames, agent.event("checkpoint_seen", 1, path="/c", rank=0), job.event("finish", 40))
    assert (book["totals"]["gpus"], book["totals"]["gpus_from"], book["totals"]["gpu_hours_lost"]) == (0, "agents", 0.0)


def test_gpu_hours_are_those_of_the_time_lost_and_of_the_time_waited() -> None:
    job, frames = _story()
    book = _costs(*frames, job.event("finish", 40))
    assert book["rollbacks"][0]["gpu_hours_lost"] == pytest.approx((40 + 20) * 1 / 3600)
    assert (book["totals"]["gpus"], book["totals"]["gpus_from"]) == (1, "world_size")


def test_gpus_are_counted_where_agents_see_them_but_never_more_than_ranks() -> None:
    jobs, agent = [_Rank(rank, world_size=2) for rank in (0, 1)], Job()
    agent.info.rank, agent.info.source = None, "a1"
    frames = [job.steps(1, 20) for job in jobs]
    one = _costs(*frames, agent.rows([20], {"gpu/0/temp_c": [50.0], "gpu/0/power_w": [100.0]}))
    many = _costs(*frames, agent.rows([20], {f"gpu/{i}/temp_c": [50.0] for i in range(8)}))
    assert [(b["totals"]["gpus"], b["totals"]["gpus_from"]) for b in (one, many)] == [(1, "agents"), (2, "agents")]


def test_a_run_without_points_and_one_without_rollbacks_have_lost_nothing() -> None:
    nothing = _costs()["totals"]
    assert (nothing["wall_s"], nothing["goodput"], nothing["ettr"], nothing["rollbacks"]) == (0.0, None, None, 0)
    job = _Rank()
    plain = _costs(job.at(1_000.0).steps(1, 50), job.event("finish", 50))
    assert plain["rollbacks"] == []
    assert (plain["totals"]["wall_s"], plain["totals"]["goodput"]) == (49.0, 1.0)


def test_two_rollbacks_without_a_point_between_share_the_time_down_and_lose_the_steps_once() -> None:
    job = _Rank()
    book = _costs(
        job.at(1_000.0).steps(1, 50), job.at(1_059.99).rolled_back(40, "a"), job.at(1_069.99).rolled_back(30, "b"),
        job.at(1_080.0).steps(31, 35), job.event("finish", 35),
    )  # fmt: skip
    costs = [(r["steps_lost"], r["wall_lost_s"], r["downtime_s"]) for r in book["rollbacks"]]
    assert costs == [(10, 10.0, pytest.approx(20.0)), (10, 10.0, pytest.approx(11.0))]
    assert book["totals"]["idle_s"] == pytest.approx(31.0)


@pytest.mark.parametrize(("to_step", "first"), [(0, 1), (-1, 0), (-1, 1)])
def test_a_rollback_to_the_beginning_loses_every_step_there_was(to_step: int, first: int) -> None:
    job = _Rank()
    book = _costs(
        job.at(1_000.0).steps(first, 50), job.rolled_back(to_step, "a"), job.at(1_060.0).steps(to_step + 1, 60)
    )
    (entry,) = book["rollbacks"]
    assert (entry["steps_lost"], entry["last_dead_step"]) == (50 - max(to_step, first - 1), 50)
    assert entry["wall_lost_s"] == 50.0 - (first if to_step == -1 else max(first, 1))


def test_a_job_that_begins_at_a_later_step_has_not_lost_those_before() -> None:
    job = _Rank()
    book = _costs(job.at(1_000.0).steps(5_000, 5_049), job.rolled_back(-1, "a"), job.steps(0, 10))
    assert book["rollbacks"][0]["steps_lost"] == 50


def test_a_restart_without_a_word_is_booked_like_a_rollback_with_the_death_that_led_to_it() -> None:
    job, again = _Rank(0, 1), _Rank(0, 2)
    state = _run(job.at(1_000.0).steps(1, 50), job.event("exception", 50, type="OutOfMemoryError", message="m"))
    state.tick()
    for frame in (again.event("start"), again.at(1_100.0).steps(41, 60)):
        state.apply(frame, replayed=False)
    (entry,) = _shown(state, 5_000.0)["rollbacks"]
    (death,) = [i for i in state.incidents.all() if i.kind == "process_death"]
    assert (entry["cause"], entry["steps_lost"], entry["wall_lost_s"], entry["downtime_s"]) == (
        "restart",
        10,
        10.0,
        51.0,
    )
    assert entry["incidents"] == [death.incident_id]


def test_the_spike_that_a_rollback_answers_is_named_and_one_that_was_over_before_is_not() -> None:
    job = Job()
    loss = [2.0 + 0.01 * (step % 3) for step in range(1, 201)]
    loss[99:102] = [9.0] * 3  # comes back by itself
    loss[190:] = [9.0 + 0.01 * (step % 3) for step in range(10)]
    frames = [job.rows([step], {"loss": [value]}) for step, value in enumerate(loss, 1)]
    state = _run(*frames, job.rolled_back(150, "a"), job.rows([151, 152], {"loss": [2.0, 2.0]}))
    (entry,) = _shown(state, 5_000.0)["rollbacks"]
    onsets = {i.incident_id: i.onset_step for i in state.incidents.all()}
    assert sorted(onsets.values()) == [100, 191]
    assert [onsets[incident_id] for incident_id in entry["incidents"]] == [191]


def test_an_undone_segment_is_listed_and_costs_nothing() -> None:
    job = Job()
    frames = [job.rows(range(1, 101)), job.rows(range(1, 31)), job.rows(range(101, 121))]
    key = _run(*frames).fold.tree[1].key
    book = _costs(*frames, undone=(key,))
    (entry,) = book["rollbacks"]
    assert (entry["undone"], entry["steps_lost"], entry["wall_lost_s"], entry["incidents"]) == (True, 0, 0.0, [])
    assert book["totals"]["rollbacks"] == 0


def test_steps_of_a_process_left_behind_are_lost_but_not_the_time_of_the_job() -> None:
    old, new = _Rank(0, 1), _Rank(0, 2)
    frames = [old.at(1_000.0).steps(1, 50), new.at(2_010.0).steps(41, 70)]
    before = _costs(*frames)["totals"]
    late = [old.at(1_060.0).rolled_back(45, "late"), old.steps(46, 55)]
    book = _costs(*frames, *late)
    aside = book["rollbacks"][-1]
    assert (aside["steps_lost"], aside["wall_lost_s"], aside["downtime_s"]) == (10, 0.0, 0.0)
    assert book["totals"]["effective_s"] == before["effective_s"]


def test_a_late_rank_changes_nothing_that_was_booked() -> None:
    jobs = [_Rank(rank, world_size=2) for rank in (0, 1)]
    lead = [jobs[0].at(1_000.0).steps(1, 50), jobs[0].rolled_back(40, "a"), jobs[0].at(1_070.0).steps(41, 60)]
    late = [jobs[1].at(1_000.5).steps(1, 50), jobs[1].rolled_back(40, "a"), jobs[1].at(1_070.5).steps(41, 60)]
    assert _costs(*lead)["rollbacks"][0]["steps_lost"] == _costs(*lead, *late)["rollbacks"][0]["steps_lost"] == 10
    assert _costs(*lead, *late)["totals"]["effective_s"] == _costs(*lead)["totals"]["effective_s"]


def test_a_clock_that_goes_back_makes_no_negative_time_and_is_named() -> None:
    job = _Rank()
    book = _costs(job.at(1_000.0).steps(1, 50), job.rolled_back(40, "a"), job.at(700.0).steps(41, 60))
    (entry,) = book["rollbacks"]
    assert entry["downtime_s"] == 0.0
    assert "clock" in entry["notes"][0]
    assert min(v for v in book["totals"].values() if isinstance(v, float)) >= 0.0


def test_while_the_new_segment_has_no_point_the_time_down_goes_on_as_long_as_somebody_is_there() -> None:
    job = _Rank()
    state = _run(job.at(1_000.0).steps(1, 50), job.at(1_059.99).rolled_back(40, "a"))
    (alone,) = _shown(state, 1_070.0)["rollbacks"]
    slot = {"rank": 0, "source": job.info.source, "pid": 1, "alive": True, "state": "running", "step": 41}
    waits = []
    for now in (1_070.0, 1_100.0):
        state.agents.health(Health("a1", "n0", now, [slot]))
        waits.append(_shown(state, now)["rollbacks"][0]["downtime_s"])
    assert (alone["downtime_s"], waits) == (None, [20.0, 50.0])


def test_a_job_that_is_unreachable_is_under_way_while_a_connection_of_its_agent_is_open() -> None:
    job = _Rank()
    state = _run(job.at(1_000.0).steps(1, 50), job.at(1_059.99).rolled_back(40, "a"))
    slot = {"rank": 0, "source": job.info.source, "pid": 1, "alive": True, "state": "running", "step": 41}
    state.agents.health(Health("a1", "n0", 5_000.0, [slot]))
    assert state.liveness.status(5_200.0)[0] == "unreachable"
    assert _shown(state, 5_200.0)["rollbacks"][0]["downtime_s"] == 5_200.0 - 1_050.0


def test_what_was_looked_up_once_is_not_read_again_unless_something_came(monkeypatch: pytest.MonkeyPatch) -> None:
    job, frames = _story()
    state = _run(*frames)
    reads: list[SeriesKey] = []
    rows = StoreView.rows

    def counted(view: StoreView, key: SeriesKey, first: int | None = None, last: int | None = None) -> Rows:
        reads.append(key)
        return rows(view, key, first, last)

    monkeypatch.setattr(StoreView, "rows", counted)
    before = _shown(state, 5_000.0)
    assert reads
    reads.clear()
    assert _shown(state, 5_000.0) == before
    assert reads == []
    state.apply(job.steps(41, 50), replayed=False)
    reads.clear()  # what the audit of the resume looked at
    _shown(state, 5_000.0)
    assert {key.segment for key in reads} == {3}


@settings(max_examples=60, deadline=None)
@given(told=stories())
@pytest.mark.soak
def test_after_any_story_each_dead_step_is_booked_once_and_no_time_is_negative(told: tuple[Story, int]) -> None:
    state = _run(*tell(*told))
    book = _shown(state, 99_999.0)
    tree = state.fold.tree
    dead = 0
    for segment in tree:
        if segment.last_step is not None and segment.first_step is not None and not segment.undone:
            limit = tree.dead_after(segment.id)
            low = segment.first_step - 1 if limit == -1 else limit
            dead += 0 if low is None else max(0, segment.last_step - low)
    totals = book["totals"]
    assert totals["steps_lost"] == dead
    numbers = [v for row in (totals, *book["rollbacks"]) for v in row.values() if isinstance(v, float)]
    assert all(0.0 <= v < float("inf") for v in numbers)
    assert totals["goodput"] is None or 0.0 <= totals["ettr"] <= totals["goodput"] <= 1.0


async def test_the_page_gets_the_ledger_of_a_run_and_404_for_one_that_is_not_there(
    redis_url: str, tmp_path: Path
) -> None:
    job, frames = _story()
    with RunningServer(redis_url, tmp_path) as server:
        async with RawAgent(server.agent_url) as agent:
            await agent.hello("run-1", sources=[job.info])
            for frame in frames:
                await agent.ask(frame)
            book = server.wait_for("/runs/run-1/ledger", lambda b: b["totals"]["rollbacks"] == 3, "the ledger")
        assert [entry["steps_lost"] for entry in book["rollbacks"]] == [40, 15, 50]
        assert server.client.get("/api/v1/runs/none/ledger").status_code == 404
