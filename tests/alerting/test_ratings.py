"""What people say of alerts becomes the precision of each kind and receiver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stabilitybackend.alerts.ratings import precision
from stabilitybackend.schema.pages.alerting import Rating


def _rating(number: int, kind: str, *, useful: bool, receivers: list[str]) -> Rating:
    return Rating(f"i-{number}", "r", "p", kind, kind.title(), useful, receivers, 100.0, 200.0, "anna")


def _incident(kind: str, *, opened: float = 100.0, alarm: bool = True) -> Any:
    return SimpleNamespace(kind=kind, label=kind.title(), opened=opened, alarm=alarm)


def test_precision_is_the_useful_share_of_what_was_rated_and_noise_is_over_the_days_that_jobs_ran() -> None:
    ratings = [
        _rating(1, "spike", useful=True, receivers=["slack"]),
        _rating(2, "spike", useful=False, receivers=["slack", "pagerduty"]),
        _rating(3, "spike", useful=True, receivers=["slack"]),
    ]
    incidents = [_incident("spike")] * 5 + [_incident("hang"), _incident("plateau", alarm=False)]
    found = precision(30, ratings, [*incidents, _incident("spike", opened=1.0)], since=50.0, job_days=4.0)
    spike, hang = found.kinds
    assert (spike.kind, spike.incidents, spike.useful, spike.noise) == ("spike", 5, 2, 1)
    assert (spike.precision, spike.noise_per_job_day) == (2 / 3, 0.25)
    assert (hang.kind, hang.incidents, hang.precision, hang.noise_per_job_day) == ("hang", 1, None, 0.0)
    assert [(one.name, one.precision) for one in found.receivers] == [("pagerduty", 0.0), ("slack", 2 / 3)]


def test_without_a_job_there_is_no_rate() -> None:
    assert precision(30, [], [_incident("spike")], since=0.0, job_days=0.0).noise_per_job_day is None
