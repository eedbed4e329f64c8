"""What of a run is shown first: by role, then by what is common, always under the metric's own name."""

from __future__ import annotations

import pytest

from stabilitybackend.judging.detection.naming.headline import MAX_CELLS, MAX_CHARTS, headline_of, unit_of
from stabilitybackend.judging.detection.naming.watched_names import WatchedNames
from stabilitybackend.judging.detection.naming.watched_report import watched_of
from stabilitybackend.schema.pages.headline import Headline

#: Names as jobs log them: the metric of the large chart, the one below it, and the cells.
JOBS = {
    "the demo": (
        ["loss", "grad_norm", "lr", "tokens_per_s", "step_time_s", "loss/web", "loss/code", "ratio/web", "ratio/code"],
        "loss", "grad_norm", ["loss", "grad_norm", "tokens_per_s", "step_time_s", "lr"],
    ),
    "Hugging Face": (
        ["train/loss", "train/grad_norm", "train/learning_rate", "train/epoch", "eval/loss", "eval/runtime",
         "eval/samples_per_second", "eval/steps_per_second"],
        "train/loss", "train/grad_norm", ["train/loss", "eval/loss", "train/grad_norm", "train/learning_rate"],
    ),
    "Lightning": (
        ["train_loss_step", "epoch", "train_loss_epoch", "val_loss", "val_acc", "lr-AdamW"],
        "train_loss_step", None, ["train_loss_step", "val_loss", "val_acc", "lr-AdamW"],
    ),
    "Megatron": (
        ["lm loss", "grad-norm", "learning-rate", "iteration-time", "batch-size", "loss-scale", "params-norm"],
        "lm loss", "grad-norm", ["lm loss", "grad-norm", "iteration-time", "learning-rate"],
    ),
    "torchtitan": (
        ["loss_metrics/global_avg_loss", "loss_metrics/global_max_loss", "throughput(tps)", "mfu(%)",
         "time_metrics/end_to_end(s)", "memory/max_reserved(GiB)", "grad_norm", "lr"],
        "loss_metrics/global_avg_loss", "grad_norm",
        ["loss_metrics/global_avg_loss", "grad_norm", "throughput(tps)", "time_metrics/end_to_end(s)", "mfu(%)", "lr",
         "memory/max_reserved(GiB)"],
    ),
    "RL without a loss": (
        ["objective/kl", "objective/entropy", "objective/rlhf_reward", "policy/clipfrac_avg", "lr", "episode"],
        "objective/rlhf_reward", None, ["objective/rlhf_reward", "objective/kl", "objective/entropy", "lr"],
    ),
    "Stable-Baselines": (
        ["rollout/ep_len_mean", "rollout/ep_rew_mean", "train/approx_kl", "train/entropy_loss", "train/value_loss",
         "train/policy_gradient_loss", "time/fps", "time/total_timesteps"],
        "rollout/ep_rew_mean", None, ["rollout/ep_rew_mean", "train/approx_kl", "rollout/ep_len_mean"],
    ),
    "600 metrics of no known name": (
        [f"m{number:03d}" for number in range(600)], "m000", None, ["m000", "m001", "m002", "m003"],
    ),
    "only readings of GPUs": ([f"gpu/{i}/temperature_c" for i in range(8)], None, None, []),
    "one loss of a policy": (["clock_mhz", "policy/kl_loss"], "policy/kl_loss", None, ["policy/kl_loss", "clock_mhz"]),
    "counters alone": (["epoch", "consumed_samples"], "epoch", None, ["epoch", "consumed_samples"]),
    "names with markup, of 300 letters and right to left": (
        ["<b>loss</b>", "ل" * 300, "x" * 300], "<b>loss</b>", None, ["<b>loss</b>", "ل" * 300, "x" * 300],
    ),
    "nothing yet": ([], None, None, []),
}  # fmt: skip


def headline(names: list[str]) -> Headline:
    return headline_of(watched_of(WatchedNames(), names), names)


@pytest.mark.parametrize("job", JOBS)
def test_a_job_is_shown_by_its_own_metrics(job: str) -> None:
    names, main, below, cells = JOBS[job]
    found = headline(names)
    assert (found.main, found.below) == (main, below)
    assert [cell.metric for cell in found.cells][: len(cells)] == cells


@pytest.mark.parametrize("job", JOBS)
def test_nothing_is_shown_twice_and_everything_is_one_of_its_names(job: str) -> None:
    names = JOBS[job][0]
    found = headline(names)
    shown = [cell.metric for cell in found.cells]
    drawn = [metric for chart in found.charts for metric in chart.metrics]
    ids = [cell.id for cell in found.cells]
    assert set(shown) <= set(names)
    assert len(set(shown)) == len(shown) <= MAX_CELLS
    assert all(name in names or name.endswith("*") for name in drawn)
    assert len(found.charts) <= MAX_CHARTS
    assert len(set(ids)) == len(ids)
    assert len({chart.id for chart in found.charts}) == len(found.charts)


def test_a_family_of_data_sets_is_one_chart() -> None:
    charts = {chart.id: chart for chart in headline(JOBS["the demo"][0]).charts}
    assert (charts["datasets"].title, charts["datasets"].metrics) == ("loss/*", ["loss/*"])
    assert charts["ratio"].metrics == ["ratio/*"]
    assert charts["step-time"].per_rank


@pytest.mark.parametrize(
    ("name", "unit"),
    {
        "step_time_s": "s", "tokens_per_s": "tokens/s", "tokens/sec": "tokens/s", "iteration_time_ms": "ms",
        "gpu/0/temperature_c": "°C", "gpu/0/power_w": "W", "gpu/0/memory_used_mib": "MiB", "gpu/0/sm_clock_mhz": "MHz",
        "memory/max_reserved(GiB)": "GiB", "mfu(%)": "%", "time_metrics/end_to_end(s)": "s",
        "eval/samples_per_second": "samples/s", "loss": "", "loss/s": "", "loss_s": "", "grad_w": "", "loss/c": "",
        "train/loss_ms_marco": "", "iteration-time": "", "reward_max": "", "acc_min": "", "mb": "",
    }.items(),
)  # fmt: skip
def test_a_unit_is_what_the_name_says_and_nothing_else(name: str, unit: str) -> None:
    assert unit_of(name) == unit
