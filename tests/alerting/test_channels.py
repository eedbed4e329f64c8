"""The environment sets up the channels; a wrong value stops the start and names the variable, not its value."""

from __future__ import annotations

import pytest

from stabilityalerting import AlertingSettingsError, sinks_from_env

_ALL = {
    "STABILITY_SLACK_WEBHOOK_URL": "https://hooks.slack.test/T1",
    "STABILITY_WEBHOOK_URL": "http://receiver.test/hook",
    "STABILITY_WEBHOOK_SECRET": "s3cret",
    "STABILITY_WEBHOOK_MIN_SEVERITY": "critical",
    "STABILITY_ALERTMANAGER_URL": "https://one.test/alertmanager/,https://two.test",
    "STABILITY_ALERTMANAGER_TOKEN": "t0ken",
}


def test_a_channel_is_there_where_its_address_or_key_is_set_with_its_least_severity() -> None:
    assert [(sink.name, sink.min_severity) for sink in sinks_from_env(_ALL)] == [
        ("slack", "info"),
        ("webhook", "critical"),
        ("alertmanager", "info"),
    ]
    assert sinks_from_env({"STABILITY_SLACK_WEBHOOK_URL": " "}) == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("STABILITY_SLACK_WEBHOOK_URL", "hooks.slack.test/s3cret"),
        ("STABILITY_WEBHOOK_URL", "ftp://s3cret.test"),
        ("STABILITY_WEBHOOK_SECRET", ""),
        ("STABILITY_ALERTMANAGER_URL", "https://user:s3cret@one.test"),
        ("STABILITY_ALERTMANAGER_URL", "https://one.test,s3cret.test"),
        ("STABILITY_ALERTMANAGER_PASSWORD", "s3cret"),
        ("STABILITY_ALERTMANAGER_USER", "s3cret"),
    ],
)
def test_a_wrong_value_stops_the_start_and_names_the_variable_alone(variable: str, value: str) -> None:
    with pytest.raises(AlertingSettingsError, match=variable) as caught:
        sinks_from_env(_ALL | {variable: value})

    assert "s3cret" not in str(caught.value)


def test_a_wrong_severity_stops_the_start_of_a_channel_that_is_not_set_up_too() -> None:
    with pytest.raises(
        AlertingSettingsError, match="STABILITY_SLACK_MIN_SEVERITY is 'loud', expected one of info, warning"
    ):
        sinks_from_env({"STABILITY_SLACK_MIN_SEVERITY": "loud"})
