"""The panel of the SpikeScore as a function of the API's answer."""

from __future__ import annotations

from typing import Any

import pytest

from stabilityfrontend.parts import plain
from stabilityfrontend.spike_score_panel import percent, spike_score
from stabilityfrontend.viewer import Theme

LOSS = {
    "metric": "loss", "steps": 12_000, "outliers": 2, "share": 2 / 12_000, "newest_share": 0.0001,
    "last_outlier": 9_000,
}  # fmt: skip
YOUNG = {"metric": "loss", "steps": 90, "outliers": 0, "share": None, "newest_share": None, "last_outlier": None}


class Answers:
    """An API of one run."""

    def __init__(self, *metrics: dict[str, Any]) -> None:
        self.metrics = list(metrics)

    def get(self, path: str, **given: Any) -> Any:
        assert path == "/runs/{run}/spike_score"
        return {"metrics": self.metrics, "either": self.metrics[0] | {"metric": ""} if self.metrics else None}


def shown(*metrics: dict[str, Any]) -> str:
    return str(plain(spike_score("r", Answers(*metrics)), Theme("dark")))  # type: ignore[arg-type]


def test_a_score_has_its_counts_and_says_how_it_is_computed() -> None:
    text = shown(LOSS, LOSS | {"metric": "grad_norm", "outliers": 0, "share": 0.0, "last_outlier": None})
    for words in ("0.017 %", "2 outliers in 12,000 steps", "0.01 % of the newest 10,000", "last at step 9,000",
                  "grad_norm", "Either", "128 points before it"):  # fmt: skip
        assert words in text, words


def test_a_young_run_says_how_far_it_is() -> None:
    assert "90 of the first 128 steps" in shown(YOUNG)
    assert "Either" not in shown(YOUNG)


def test_a_run_without_a_loss_says_so() -> None:
    assert "Neither a loss nor a gradient norm" in shown()


@pytest.mark.parametrize(("share", "words"), [(0.0, "0 %"), (0.00012, "0.012 %"), (0.5, "50 %")])
def test_a_share_has_two_digits(share: float, words: str) -> None:
    assert percent(share) == words
