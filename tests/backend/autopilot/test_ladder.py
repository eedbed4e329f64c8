"""The autopilot waits, goes back once to the right checkpoint, follows the advice, and asks people at its end."""

from __future__ import annotations

import math

import pytest

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.schema.commands import Rollback
from stabilityclient.wire import Health
from support.jobs.piloted_job import PilotedJob, falling, stuck


def once(step: int, went_back: int) -> float:
    """A spike at step 400 that a rollback cures."""
    return falling(step) if went_back else stuck(400)(step)


def always(step: int, went_back: int) -> float:
    return stuck(400)(step)


def test_it_waits_then_goes_back_once_to_the_newest_checkpoint_from_before_the_first_sign() -> None:
    job = PilotedJob("wait_steps: 40", once).train(800)
    (command,) = job.commands
    assert isinstance(command, Rollback)
    assert (command.to_step, command.skip_range, command.issuer, command.state) == (
        300,
        (400, 500),
        "autopilot",
        "done",
    )
    assert "before its first sign (step 400)" in command.reason
    (waits, orders) = [one for one in job.said if one[1] in ("waits", "under way")]
    assert waits[0] == 405
    assert "waits until step 450, then rolls back to step 300, leaves out the batches of steps 400" in waits[2]
    assert 440 <= orders[0] <= 450
    assert not job.asked


def test_a_spike_that_passes_while_it_waits_costs_nothing() -> None:
    job = PilotedJob("wait_steps: 40", lambda step, _: falling(step) + 2.5 * (400 <= step < 415)).train(600)
    assert [phase for _, phase, _ in job.said] == ["idle", "waits", "idle"]
    assert not job.entries


def test_a_spike_that_comes_down_slowly_gets_more_time_but_not_without_end() -> None:
    job = PilotedJob("wait_steps: 40", lambda s, _: falling(s) + 4.0 * math.exp((400 - s) / 40) * (s >= 400)).train(800)
    assert any("is coming back" in text for _, _, text in job.said)
    assert not job.entries
    far = PilotedJob("wait_steps: 40", lambda s, _: falling(s) + 9.0 * math.exp((400 - s) / 400) * (s >= 400))
    assert [one.step for one in far.train(700).entries] != []


@pytest.mark.parametrize("shape", ["falls a little", "ends at once"])
def test_a_spike_that_is_on_its_way_back_is_not_rolled_back(shape: str) -> None:
    # It lasts until a look after the end of the wait, and is over before the one after that.
    def loss(step: int, _: int) -> float:
        affecting = 400 <= step < (520 if shape == "falls a little" else 450)
        fall = (step - 400) * 0.008 if shape == "falls a little" else 0.0
        return falling(step) + affecting * (2.5 - fall)

    job = PilotedJob("wait_steps: 40", loss).train(700)
    assert any("is coming back: waits for it, until step 551 at most" in text for _, _, text in job.said)
    assert not job.entries


def test_trouble_that_comes_again_is_met_further_back_with_less_rate_and_a_new_seed_and_then_by_people() -> None:
    job = PilotedJob("wait_steps: 40", always).train(900)
    first, second = job.commands
    assert (first.to_step, second.to_step) == (300, 200)
    assert (second.lr_scale, second.seed is not None) == (0.5, True)
    (asked,) = job.asked
    assert asked.alarm
    assert asked.severity == "critical"
    primary = job.state.incidents.get(asked.caused_by)
    assert primary is not None, "alerting tells it behind the incident that it is about"
    assert (primary.kind, primary.state) == ("divergence", "open"), "a spike that rises on"
    assert "2 rollbacks did not cure it" in asked.text
    assert job.shown.phase == "handed over"


def test_it_never_goes_to_one_checkpoint_twice_however_often_there_is_trouble() -> None:
    # Three times trouble of its own at a place of its own: the advice does not take them for one.
    onsets = {0: 400, 1: 395, 2: 390, 3: 385}
    job = PilotedJob("limit: {actions: 10}\nwait_steps: 0", lambda s, n: stuck(onsets.get(n, 380))(s)).train(1_500)
    targets = [(one.to_step, one.segment) for one in job.entries if one.action == "roll_back"]
    assert len(targets) >= 2
    assert len(set(targets)) == len(targets)


def test_at_the_limit_of_the_policy_people_are_asked_until_the_trouble_is_over() -> None:
    job = PilotedJob("limit: {actions: 1, in_steps: 1000}", always).train(700)
    assert len(job.commands) == 1
    assert [one.state for one in job.asked] == ["open"]
    assert "it has gone back once within 1,000 steps" in job.asked[0].text
    job.send(job.job.rolled_back(100, "by-hand"))
    job.judge()
    (asked,) = job.state.incidents.of({"autopilot_gave_up"})
    assert asked.state == "resolved"


def test_a_dry_run_notes_once_what_it_would_have_done_and_orders_nothing() -> None:
    job = PilotedJob("dry_run: true", always).train(700)
    (entry,) = job.entries
    assert (entry.action, entry.dry_run, entry.to_step) == ("roll_back", True, 300)
    assert not job.commands
    assert not job.asked


@pytest.mark.parametrize(
    "kind", ["gpu_fault", "hang", "process_death", "sdc_suspect", "agent_lost", "order_not_followed"]
)
def test_nothing_is_ordered_while_the_machines_may_be_to_blame(kind: str) -> None:
    job = PilotedJob("wait_steps: 0", once).train(395)
    shared = {"detector": "test", "key": kind, "kind": kind, "severity": "info", "title": kind, "text": ""}
    finding = Finding(**shared, state="open", onset_step=395, step=395, now_step=395)
    job.state.found(finding, job.now, Effects())
    job.train(200)
    assert not job.entries
    assert job.shown.phase == "held"
    over = Finding(**shared, state="resolved", onset_step=395, step=395, now_step=600)
    job.state.found(over, job.now, Effects())
    job.train(5)
    assert [one.to_step for one in job.commands] == [300]


def test_a_level_shift_is_for_people_even_beside_a_spike() -> None:
    job = PilotedJob("wait_steps: 0", once).train(395)
    shift = Finding(
        detector="test", key="l", kind="level_shift", severity="warning", title="level", text="", state="open",
        onset_step=390, step=395, now_step=395, metric="loss",
    )  # fmt: skip
    job.state.found(shift, job.now, Effects())
    job.train(200)
    assert not job.entries
    assert "level shift" in job.shown.text


@pytest.mark.parametrize(
    ("policy", "options", "says"),
    [
        ("dry_run: false", {"verified": False}, "no verified checkpoint"),
        ("dry_run: false", {"checkpoint_every": 5_000}, "no verified checkpoint"),
        ("dry_run: false", {"can": ("lr_scale", "seed")}, "the advice asks for leaving out batches, and the job does"),
        ("changes: [lr_scale]", {}, "leaving out batches, which the policy does not allow"),
    ],
    ids=["nobody verified one", "there is none", "the job can't skip", "the policy says no"],
)
def test_what_the_advice_asks_and_nobody_can_or_may_is_left_to_people(policy: str, options: dict, says: str) -> None:
    job = PilotedJob(policy, always, **options).train(500)
    assert not job.commands
    (asked,) = job.asked
    assert says in asked.text


def test_a_checkpoint_that_nobody_looked_at_is_good_where_the_policy_says_so() -> None:
    job = PilotedJob("checkpoints: announced", once, verified=False).train(500)
    assert [one.to_step for one in job.commands] == [300]


def test_a_kind_that_the_policy_does_not_name_is_left_alone() -> None:
    job = PilotedJob("act_on: [nonfinite]", always).train(500)
    assert not job.entries
    assert "the policy acts on nonfinite" in job.shown.text


def test_without_an_agent_the_order_waits_and_is_given_when_one_is_there() -> None:
    job = PilotedJob("wait_steps: 40", once)
    job.state.agents.all.clear()
    job.train(500)
    assert not job.entries
    assert "no agent of this run is connected" in job.shown.text
    job.state.agents.health(Health("a1", "n0", job.now, []))
    job.train(5)
    assert [one.to_step for one in job.commands] == [300]


def test_an_order_that_nobody_carried_out_is_not_given_again() -> None:
    job = PilotedJob("wait_steps: 40", once, obeys=False).train(460)
    (command,) = job.commands
    assert "is under way" in job.shown.text
    command.note("expired", job.now, "0 of 1 ranks answered")
    job.train(50)
    assert len(job.commands) == 1
    assert "was not carried out (expired)" in job.asked[0].text


def test_who_forgot_everything_but_the_stored_entries_decides_the_same_and_orders_nothing_twice() -> None:
    job = PilotedJob("wait_steps: 40", once, obeys=False).train(460)
    stored = list(job.entries)
    job.pilot = job.new_pilot("wait_steps: 40")
    assert len(job.judge().entries) == 0  # the command is known under its id
    job.pilot = job.new_pilot("wait_steps: 40")
    job.pilot._entries = {one.entry_id: one for one in stored}
    assert len(job.judge().entries) == 0
    assert len(job.commands) == 1


def test_on_a_healthy_run_it_says_nothing_but_that_there_is_nothing() -> None:
    job = PilotedJob("wait_steps: 0", lambda step, _: falling(step)).train(1_000)
    assert {phase for _, phase, _ in job.said} == {"idle"}
    assert not job.entries
