"""What is advised: for every kind, with its source, and more than a rollback where the evidence speaks for more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from stabilitybackend.judging.incidents.affecting import earliest_step
from stabilitybackend.judging.incidents.recipe import Recipe, recipe_of
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.judging.incidents.suggest import suggest
from stabilitybackend.judging.incidents.suggestion import JobNow
from stabilitybackend.schema.incidents import Incident
from support.checkpoints import checkpoint
from support.stored.incident import stored

FIELDS = {
    "action", "to_step", "skip_batches", "skip_range", "lr_scale", "reseed", "wait_steps", "until_step",
    "fix_first", "leads", "checklist", "text", "source",
}  # fmt: skip
KINDS = (
    "spike", "divergence", "nonfinite", "level_shift", "plateau", "repeat_data", "resume_artifact", "data_mix_drift",
    "shared_data", "learning_rate", "grad_norm", "throughput", "straggler", "hang", "process_death", "agent_lost",
    "order_not_followed",
)  # fmt: skip
ONSET, NOW = 1_200, 1_203


CHECKPOINTS = [checkpoint(step) for step in range(0, 1_500, 100)]


def incident(kind: str = "spike", onset: int = ONSET, **changes: Any) -> Incident:
    like = {
        "incident_id": f"i-{kind}-{onset}",
        "severity": "warning",
        "metric": "loss",
        "onset_step": onset,
        "recovery": "pending" if kind == "spike" else None,
    }
    return stored(kind, **like | changes)


def recovered(onset: int, steps: int) -> Incident:
    return incident(onset=onset, state="recovered", recovery="fast", recovered_step=onset + steps)


def advice(
    one: Incident, history: Any = (), now: int = NOW, checkpoints: Any = CHECKPOINTS, job: JobNow | None = None
) -> dict[str, Any]:
    suggestion = suggest(one, UsableOf(checkpoints), now, history, JobNow() if job is None else job)
    assert suggestion is not None
    return asdict(suggestion)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", ["open", "recovered", "resolved"])
@pytest.mark.parametrize("severity", ["info", "warning", "critical"])
@pytest.mark.parametrize("checkpoints", [CHECKPOINTS, []])
def test_every_kind_has_an_advice_of_one_shape(kind: str, state: str, severity: str, checkpoints: Any) -> None:
    found = advice(incident(kind, state=state, severity=severity), checkpoints=checkpoints)
    assert set(found) == FIELDS
    assert found["action"] in ("roll_back", "wait", "none", "restart", "inspect")
    assert found["text"]
    assert found["source"]
    assert len(found["checklist"]) <= 10
    assert found["skip_batches"] is None or found["to_step"] is not None
    assert (found["skip_batches"] is None) == (found["skip_range"] is None)
    assert (found["wait_steps"] is None) == (found["until_step"] is None)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_only_known_never_asks_for_a_rollback(kind: str) -> None:
    for state in ("open", "resolved"):
        assert advice(incident(kind, severity="info", state=state))["action"] != "roll_back" or kind == "nonfinite"


def test_a_fresh_spike_is_waited_for_and_the_rollback_after_it_is_prepared() -> None:
    found = advice(incident())
    assert (found["action"], found["wait_steps"], found["until_step"], found["to_step"]) == ("wait", 50, 1_250, 1_100)
    assert "until step 1250" in found["text"]


def test_the_batches_before_the_first_bad_one_are_not_left_out() -> None:
    found = advice(incident())
    assert (found["skip_range"], found["skip_batches"]) == ([1_200, 1_300], 200)
    assert "the batches of the steps 1200 to 1300" in found["text"]


@pytest.mark.parametrize(
    ("changes", "now", "last"),
    [
        ({}, 1_300, 1_400),
        ({}, 1_350, 1_600),
        ({}, 3_000, 1_700),  # damaged weights keep the loss up, whatever the data of the last 1,300 steps were
        ({"peak_step": 2_000}, 3_000, 2_050),
        ({"dataset": "code"}, 1_400, 1_600),
        ({"dataset": "code"}, 3_000, 3_700),
    ],
)
def test_the_batches_that_are_left_out_go_on_to_the_end_of_the_pocket(
    changes: dict[str, Any], now: int, last: int
) -> None:
    found = advice(incident(recovery="none", **changes), now=now)
    assert found["skip_range"] == [1_200, last]
    assert ("where the bad ones end is not known yet" in found["text"]) == (last > now)


@pytest.mark.parametrize("kind", ["divergence", "resume_artifact", "data_mix_drift", "repeat_data", "learning_rate"])
def test_where_the_data_are_not_the_cause_no_batch_is_left_out(kind: str) -> None:
    found = advice(incident(kind))
    assert (found["to_step"], found["skip_batches"], found["skip_range"]) == (1_100, None, None)


def test_of_incidents_that_ask_for_a_look_the_cause_leads_and_not_the_one_that_was_seen_first() -> None:
    repeated, mixture = incident("repeat_data", onset_step=1_190, incident_id="low"), incident("data_mix_drift")
    found = advice(repeated, [mixture])
    assert (found["leads"], found["fix_first"]) == (mixture.incident_id, "mixture")


def test_one_data_set_that_did_not_come_back_is_looked_at_and_nobody_goes_back() -> None:
    found = advice(incident("level_shift", state="resolved", metric="loss/code", dataset="code"))
    assert (found["action"], found["to_step"]) == ("none", None)
    assert "look at what code reads since step 1200" in found["text"]


def test_where_several_data_sets_rose_for_good_what_they_have_in_common_is_looked_at() -> None:
    found = advice(incident("level_shift", state="resolved", evidence={"all_alike": True, "now_step": NOW}))
    assert (found["action"], found["skip_batches"]) == ("none", None)
    assert "what the data sets have in common since step 1200" in found["text"]


@pytest.mark.parametrize(("offset", "action", "word"), [(0, "none", "seeds"), (400, "inspect", "weights of run base")])
def test_data_of_another_run_is_looked_at_only_where_the_weights_may_know_it(
    offset: int, action: str, word: str
) -> None:
    evidence = {"other_name": "base", "offset_steps": offset, "now_step": NOW}
    found = advice(incident("shared_data", severity="info", state="resolved", metric=None, evidence=evidence))
    assert found["action"] == action
    assert word in found["text"]
    assert "Nothing to do" not in found["text"]


def test_how_long_is_waited_follows_from_the_earlier_spikes_of_the_run() -> None:
    history = [recovered(100, 20), recovered(300, 40), recovered(500, 30)]
    found = advice(incident(), history)
    assert found["wait_steps"] == 90
    assert "3 earlier spikes" in found["text"]


def test_a_run_that_logs_rarely_is_waited_for_in_its_own_points() -> None:
    window = {"steps": [1_000, 1_050, 1_100, 1_150, 1_200], "values": [1, 1, 1, 1, 4]}
    assert advice(incident(evidence={"window": window}))["wait_steps"] == 2_500


def test_a_spike_that_took_longer_than_the_wait_is_rolled_back() -> None:
    found = advice(incident(), now=1_260)
    assert (found["action"], found["to_step"], found["lr_scale"]) == ("roll_back", 1_100, None)


@pytest.mark.parametrize(
    "one", [incident(recovery="none", severity="critical"), incident("divergence", severity="critical")]
)
def test_what_does_not_come_back_is_rolled_back_with_a_lower_learning_rate(one: Incident) -> None:
    found = advice(one)
    assert (found["action"], found["lr_scale"], found["reseed"]) == ("roll_back", 0.5, False)
    assert "2205.01068" in found["source"]


def test_when_it_comes_again_after_a_rollback_it_goes_further_back_with_a_new_seed_and_half_the_rate() -> None:
    before = incident(
        onset=1_190,
        dead=True,
        state="resolved",
        evidence={"rolled_back_to": 1_100, "rolled_back_into": 1},
    )
    found = advice(incident(segment=1, recovery="none"), [before])
    assert (found["to_step"], found["lr_scale"], found["reseed"]) == (1_000, 0.5, True)
    assert "did not cure it" in found["text"]
    assert "IDEFICS" in found["source"]


def test_an_advice_that_stands_for_long_counts_no_steps_that_grow_meanwhile() -> None:
    text = advice(incident(recovery="none"))["text"]
    assert "The steps from 1101 on are trained again." in text


def test_trouble_long_after_a_rollback_is_another_one_and_goes_back_for_itself() -> None:
    before = incident(
        onset=190, dead=True, state="resolved", evidence={"rolled_back_to": 100, "rolled_back_into": 1, "now_step": 260}
    )
    found = advice(incident(segment=1, recovery="none"), [before])
    assert (found["to_step"], found["reseed"]) == (1_100, False)


def left_behind(onset: int, segment: int, to_step: int, **changes: Any) -> Incident:
    """Return an incident that a rollback left: from which segment, to which step, with what changed."""
    by = {"rolled_back_to": to_step, "rolled_back_into": segment + 1, "rolled_back_with": changes}
    like = {"incident_id": f"i-{segment}", "dead": True, "state": "resolved", "segment": segment}
    return incident(onset=onset, evidence=by | {"now_step": onset + 20}, **like)


def test_after_two_rollbacks_in_vain_the_cause_is_corrected_first_and_no_further_checkpoint_is_named() -> None:
    history = [left_behind(1_190, 0, 1_100), left_behind(1_180, 1, 1_000, lr_scale=0.5, seed=7)]
    found = advice(incident(segment=2, recovery="none"), history)
    assert (found["action"], found["fix_first"], found["to_step"]) == ("inspect", "cause", 1_000)
    assert (found["lr_scale"], found["reseed"], found["skip_range"], found["until_step"]) == (None, False, None, None)
    assert found["text"].startswith(
        "Another rollback will not help: 2 did not cure it (to step 1100; to step 1000: learning rate times 0.5, a new "
        "seed)"
    )
    assert "go on from the checkpoint of step 1000" in found["text"]


def test_rollbacks_into_the_illness_do_not_show_that_none_helps() -> None:
    early = {"onset_band": [1_050, 1_190]}
    into = left_behind(1_190, 0, 1_100)
    history = [replace(into, evidence={**into.evidence, **early}), left_behind(1_180, 1, 1_000)]
    found = advice(incident(segment=2, recovery="none"), history)
    assert (found["action"], found["to_step"]) == ("roll_back", 900)


@pytest.mark.parametrize(("scale", "to_step"), [(0.5, 900), (None, 1_200)])
def test_trouble_that_a_lower_rate_puts_off_is_still_the_same(scale: float | None, to_step: int) -> None:
    before = left_behind(1_150, 0, 1_000, **({} if scale is None else {"lr_scale": scale}))
    found = advice(incident(onset=1_300, segment=1, recovery="none"), [before])
    assert found["to_step"] == to_step


def test_a_checkpoint_from_after_the_first_sign_is_not_trusted() -> None:
    moved = [{"metric": "grad_norm", "onset_step": 1_095, "rise_percent": 300.0}]
    assert advice(incident(evidence={"moved_first": moved}))["to_step"] == 1_000


def test_a_checkpoint_from_inside_of_damage_that_came_back_is_passed_over_where_there_is_an_older_one() -> None:
    before = recovered(1_050, 140)
    found = advice(incident("level_shift"), [before])
    assert found["to_step"] == 1_000
    assert "the one of step 1100 was saved inside of damage that came back" in found["text"]
    only = [one for one in CHECKPOINTS if one.step >= 1_100]
    assert advice(incident("level_shift"), [before], checkpoints=only)["to_step"] == 1_100


def test_without_a_checkpoint_it_says_so() -> None:
    found = advice(incident("divergence"), checkpoints=[checkpoint(1_300), checkpoint(900, dead=True)])
    assert (found["action"], found["to_step"]) == ("wait", None)
    assert "No checkpoint" in found["text"]


@pytest.mark.parametrize(
    ("evidence", "history"),
    [
        ({"gradients": {"quiet_ratio": 0.4, "burst_ratio": 5.0}}, []),
        ({"gradients": {"quiet_ratio": 1.0, "burst_ratio": 12.0}}, []),
        ({}, [recovered(900, 5), recovered(1_000, 5)]),
    ],
)
def test_trouble_of_the_optimizer_names_beta2_and_epsilon(evidence: Any, history: Any) -> None:
    lines = " ".join(advice(incident(evidence=evidence), history)["checklist"])
    assert "beta2" in lines
    assert "epsilon" in lines
    assert "2304.13013" in lines


@pytest.mark.parametrize(
    "one",
    [
        incident(),
        incident(evidence={"gradients": {"quiet_ratio": 1.0, "burst_ratio": 2.0}}),
        incident(evidence={"gradients": "?"}),
        incident(dataset="code", evidence={"gradients": {"quiet_ratio": 1.0, "burst_ratio": 50.0}}),
    ],
)
def test_a_single_spike_or_one_of_a_single_data_set_does_not_accuse_the_optimizer(one: Incident) -> None:
    assert advice(one)["checklist"] == []


@pytest.mark.parametrize(("metric", "cure"), [("output_logsumexp", "z-loss"), ("max_attention_logit", "QK-norm")])
def test_growing_logits_name_their_cure(metric: str, cure: str) -> None:
    evidence = {"growing": [{"metric": metric, "from": 10.0, "to": 20.0, "rise_percent": 100.0}]}
    lines = advice(incident("divergence", evidence=evidence))["checklist"]
    assert [metric in line and cure in line and "2309.14322" in line for line in lines] == [True]


def test_growth_over_the_run_is_told_with_its_figures_and_with_more_than_a_norm_that_is_on() -> None:
    grown = {"metric": "attn/max_logit", "from": 12.0, "to": 80.0, "rise_percent": 566.7, "since_step": 150}
    one = incident("divergence", evidence={"growing": [grown]})
    (line,) = advice(one)["checklist"]
    assert line.startswith("attn/max_logit grew by 567 % since step 150 (from 12 to 80): normalise queries and keys")
    (line, *_) = advice(one, job=JobNow(recipe=Recipe(qk_norm=True)))["checklist"]
    assert "QK-clip" in line
    assert "2507.20534" in line


CONFIG = {
    "optim": {"betas": [0.9, 0.999], "eps": 1e-6},
    "model": {"hidden_size": 4_096, "norm_type": "layernorm", "bias": True, "norm": {"eps": 1e-5}},
    "global_batch_size": 256, "seq_length": 4_096, "precision": "fp16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (CONFIG, ["beta2 is 0.999", "epsilon is 1e-06", "fp16", "LayerNorm", "biases", "1,048,576 tokens", "muP"]),
        ({"adam_beta2": 0.95, "adam_epsilon": 1e-8, "precision": "bf16-mixed", "norm_type": "rmsnorm"}, []),
        ({"precision": "bf16-true"}, ["fp32 copy of the weights"]),
        ({"optimizer_dtype": "bfloat16"}, ["fp32 copy of the weights"]),
        ({"use_qk_norm": False, "z_loss": 0.0}, ["QK-norm is off", "z-loss is off"]),
        ({"hidden_size": 256, "global_batch_size": 8, "seq_length": 512}, []),
        ({"d_model": 4_096, "mup": True, "tokens_per_batch": 8e6}, []),
        ({"model.norm.eps": 1e-5, "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5}, []),
        ({"beta2": "0.999", "bias": None, "betas": [1], "norm_type": 3, "hidden_size": True}, []),
        ({}, []),
    ],
)
def test_the_recipe_is_a_checklist_where_others_trained_otherwise(config: dict[str, Any], words: list[str]) -> None:
    job = JobNow(recipe=recipe_of(config))
    lines = advice(incident("divergence"), job=job)["checklist"]
    assert [word in line for word, line in zip(words, lines, strict=True)] == [True] * len(words)
    assert all("arXiv" in line for line in lines)
    assert advice(incident(), job=job)["checklist"] == []  # one spike that may come back


@pytest.mark.parametrize("kind", ["resume_artifact", "data_mix_drift", "repeat_data"])
def test_a_bad_resume_gets_a_list_to_go_through_and_where_to_go_back_to(kind: str) -> None:
    found = advice(incident(kind))
    assert (found["action"], found["to_step"]) == ("inspect", 1_100)
    assert any("Seed of the shuffle" in line for line in found["checklist"])


JUMP = {
    "nearby": [{"what": "lr", "step": ONSET - 1, "distance": -1, "text": "the learning rate went from 0.001 to 0.01"}],
    "moved_first": [{"metric": "train/lr", "onset_step": ONSET - 1, "rise_percent": 900.0}],
}


@pytest.mark.parametrize("kind", ["spike", "divergence", "nonfinite", "resume_artifact"])
@pytest.mark.parametrize("checkpoints", [CHECKPOINTS, []])
def test_a_learning_rate_that_jumped_right_before_is_looked_at_first(kind: str, checkpoints: Any) -> None:
    found = advice(incident(kind, evidence=JUMP), checkpoints=checkpoints)
    assert found["text"].startswith(
        "Look at the schedule first: the learning rate went from 0.001 to 0.01 at step 1199."
    )


@pytest.mark.parametrize(("rollbacks", "first"), [(0, ""), (1, "schedule"), (2, "schedule")])
def test_a_rate_that_leaves_its_past_after_a_rollback_as_before_is_set_by_the_schedule(
    rollbacks: int, first: str
) -> None:
    rate = incident(
        "learning_rate", ONSET - 1, metric="lr", segment=rollbacks, state="recovered", recovered_step=ONSET + 2
    )
    left = [left_behind(ONSET, segment, 1_100 - 100 * segment) for segment in range(rollbacks)]
    found = advice(incident(segment=rollbacks, recovery="none"), [*left, rate])
    assert found["fix_first"] == first
    assert ("the schedule sets it" in found["text"]) == bool(first)


def test_a_bump_that_is_over_does_not_excuse_a_rate_that_was_not_restored() -> None:
    assert advice(incident("resume_artifact", state="recovered", evidence=JUMP))["action"] == "inspect"
    assert advice(incident("resume_artifact", state="recovered"))["action"] == "none"


def test_trouble_right_after_a_fork_gets_the_list_of_a_bad_resume() -> None:
    fork = {"nearby": [{"what": "fork", "step": ONSET - 2, "distance": -2, "text": "the run restarted"}]}
    for state in ("open", "recovered"):
        assert any("both moments" in line for line in advice(incident(state=state, evidence=fork))["checklist"])


def test_a_level_that_an_excuse_explains_asks_for_nothing() -> None:
    text = "lr_jump: the learning rate went from 0.001 to 0.0001"
    found = advice(incident("level_shift", severity="info", state="resolved", evidence={"explained_by": [text]}))
    assert found["action"] == "none"
    assert text in found["text"]


@pytest.mark.parametrize(("after", "action"), [(6.0, "inspect"), (1.0, "none")])
def test_a_higher_level_that_stays_is_not_told_to_be_nothing(after: float, action: str) -> None:
    evidence = {"level_before": 2.0, "level_after": after}
    found = advice(incident("level_shift", state="resolved", severity="critical", evidence=evidence))
    assert found["action"] == action
    assert ("Nothing to do" in found["text"]) == (action == "none")
    assert ("find out what changed at step 1200. It did not come back" in found["text"]) == (action == "inspect")


def test_the_ratio_of_two_levels_is_told_since_accounting_is_exact() -> None:
    found = advice(incident("level_shift", evidence={"level_before": 2.0, "level_after": 3.0}))
    assert "1.5 x" in found["checklist"][0]


def test_a_plateau_tells_how_many_classes_a_guess_of_this_loss_has() -> None:
    lines = advice(incident("plateau", evidence={"level_after": 6.908}))["checklist"]
    assert lines[0].startswith("exp(loss) is 1000:")
    assert "exp(loss)" not in advice(incident("plateau", evidence={"level_after": -1.0}))["checklist"][0]


def test_a_gradient_spike_is_watched_only() -> None:
    assert advice(incident("grad_norm", metric="grad_norm"))["action"] == "none"


def test_a_gradient_that_is_not_a_number_is_looked_at_before_anything_is_lost() -> None:
    assert advice(incident("nonfinite", metric="grad_norm"))["action"] == "inspect"
    assert advice(incident("nonfinite"))["action"] == "roll_back"


def test_a_kind_that_nobody_knows_has_no_advice() -> None:
    assert suggest(incident("alert"), UsableOf(CHECKPOINTS), NOW) is None


@pytest.mark.parametrize(("first", "when"), [(0, "with the run's first steps"), (60, "at step 60")])
def test_of_what_may_have_begun_long_before_its_onset_no_more_is_claimed(first: int, when: str) -> None:
    one = incident("divergence", severity="critical", evidence={"onset_band": [first, ONSET]})
    text = advice(one, checkpoints=CHECKPOINTS[1:])["text"]
    assert f"may have begun {when}" in text
    assert "The oldest one is that of step 100, 1,100 steps before the onset." in text
    assert "from inside it" not in text
    assert "start again" not in text


@pytest.mark.parametrize("onset", [0, 1, 16, 32])
def test_nothing_began_before_the_first_step(onset: int) -> None:
    window = {"metric": "loss", "steps": [-33, -17, *range(onset, onset + 64, 16)], "values": [2.0] * 6}
    assert earliest_step(incident(onset=onset, evidence={"window": window})) >= 0


@pytest.mark.parametrize("now", [1_203, 3_000, 100_000])
def test_a_loss_that_is_not_finite_tells_nothing_of_later_batches(now: int) -> None:
    found = advice(incident("nonfinite", severity="critical"), now=now)
    assert found["skip_range"] == [ONSET, ONSET + 50]


def test_lone_points_that_became_higher_are_looked_at_and_not_told_to_be_nothing() -> None:
    one = incident(state="recovered", recovery="fast", recovered_step=1_201, evidence={"lone_since": 1_150})
    found = advice(one)
    assert (found["action"], found["to_step"]) == ("inspect", None)
    assert "Look at the batches of the high points since step 1150" in found["text"]
