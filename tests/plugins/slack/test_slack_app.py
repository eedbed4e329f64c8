"""One thread an incident in Slack, kept up to date, over errors, limits and kills."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis

from stabilityalerting import AlertingSettingsError, Branch, Curve, Facts, sinks_from_env
from stabilityplugins.slack.channel import SlackAppSink
from support.incident_stream import STREAM, incident, publish, settled
from support.slack.app_stack import ROLL_BACK, running, soon, told
from support.slack.fake_slack import APP_TOKEN, BOT_TOKEN, CHANNEL, FakeSlack
from support.slack.pretended_actions import PretendedActions

SPOILED = Facts("night", curve=Curve("loss", [Branch(range(90, 105), [2.0] * 10 + [math.nan] * 5)], 100))


async def test_an_incident_is_one_message_and_its_changes_are_replies_in_its_thread(
    redis: Redis, slack: FakeSlack
) -> None:
    async with running(redis, slack):
        await publish(redis, incident(1))
        await soon(lambda: slack.messages, "the message is there")
        await publish(redis, incident(1, 2, severity="critical"), incident(1, 3, state="resolved"))
        await soon(lambda: len(slack.messages) == 3, "the replies are there")
        await soon(lambda: "Resolved" in slack.messages[0].text, "the message is up to date")

    [parent] = slack.parents()
    assert [(one.text, one.broadcast) for one in slack.replies(parent)] == [
        ("\U0001f6a8 Now critical: Loss spike at step 100 (run run-1)", True),
        ("\u2705 Resolved: Loss spike at step 100 (run run-1)", False),
    ]
    assert list(parent.buttons()) == ["stability_open", "stability_useful", "stability_noise"]


async def test_what_is_no_message_of_its_own_is_in_the_message_of_the_thread(redis: Redis, slack: FakeSlack) -> None:
    async with running(redis, slack):
        await publish(redis, incident(1))
        await soon(lambda: slack.messages, "the message is there")
        await publish(redis, incident(1, 2, text="It got worse: 7."), incident(1, 3, text="It got worse: 8."))
        await soon(lambda: "worse: 8" in slack.messages[0].said(), "the message is up to date")

    assert len(slack.messages) == 1


async def test_a_curve_that_slacks_chart_can_not_show_is_a_picture_and_without_the_scope_words(
    redis: Redis, slack: FakeSlack
) -> None:
    async with running(redis, slack, PretendedActions(shown=SPOILED)):
        await publish(redis, incident(1))
        await soon(lambda: slack.files, "the picture is in the thread")
        slack.scopes.discard("files:write")
        await publish(redis, incident(2))
        await soon(lambda: sum(name.startswith("files.get") for name, _ in slack.calls) == 2, "another is tried")
        await publish(redis, incident(3))
        await soon(lambda: len(slack.parents()) == 3, "the third one is told")

    [picture] = slack.files
    assert (picture["thread"], picture["channel"]) == (slack.messages[0].ts, CHANNEL)
    assert picture["content"].startswith(b"\x89PNG")
    assert "NaN from step 100 on (5 values)" in slack.parents()[2].said()
    assert sum(name.startswith("files.get") for name, _ in slack.calls) == 2


async def test_a_workspace_that_takes_no_charts_gets_the_same_message_with_a_picture(
    redis: Redis, slack: FakeSlack
) -> None:
    slack.takes_charts = False
    async with running(redis, slack):
        await publish(redis, incident(1))
        await soon(lambda: slack.files, "the picture is in the thread")

    assert [block["type"] for block in slack.messages[0].blocks] == [
        "header", "section", "section", "section", "section", "actions",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        (429, {"Retry-After": "0"}, b'{"ok": false, "error": "ratelimited"}'),
        (200, {}, b'{"ok": false, "error": "internal_error"}'),
        (200, {}, b'{"ok": false, "error": "not_in_channel"}'),
        (503, {}, b"<html>"),
        (200, {}, b"<html>no JSON</html>"),
        (200, {}, b"[1, 2]"),
        (200, {}, b'{"ok": true}'),
    ],
    ids=["ratelimited", "internal_error", "not_in_channel", "503", "html", "list", "no ts"],
)
async def test_what_can_be_mended_is_tried_again(redis: Redis, slack: FakeSlack, answer: tuple) -> None:  # type: ignore[type-arg]
    slack.script["chat.postMessage"] = [answer]
    async with running(redis, slack) as service:
        await publish(redis, incident(1))
        await soon(lambda: slack.messages, "it is told")
        await settled(redis, "alerting:slack_app", 1)

    assert service.status()["counts"]["slack_app"] == {"retries": 1, "sent": 1}


@pytest.mark.parametrize("error", ["invalid_auth", "token_revoked", "msg_too_long", "no_text", "unknown_to_us"])
async def test_what_can_not_be_mended_ends_there_and_the_next_one_is_sent(
    redis: Redis, slack: FakeSlack, caplog: pytest.LogCaptureFixture, error: str
) -> None:
    slack.script["chat.postMessage"] = [(200, {}, json.dumps({"ok": False, "error": error}).encode())]
    async with running(redis, slack) as service:
        await publish(redis, incident(1), incident(2))
        await settled(redis, "alerting:slack_app", 2)

    assert service.status()["counts"]["slack_app"] == {"refused": 1, "sent": 1}
    assert f"chat.postMessage was refused: {error}" in caplog.text
    assert not any(secret in caplog.text for secret in (BOT_TOKEN, APP_TOKEN))


async def test_no_secret_is_in_redis_in_the_status_or_in_the_log(
    redis: Redis, slack: FakeSlack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    slack.script["chat.postMessage"] = [(403, {}, f'{{"ok": false, "error": "{BOT_TOKEN}"}}'.encode())]
    async with running(redis, slack, STABILITY_SLACK_SIGNING_SECRET="signing-s3cret") as service:
        await publish(redis, incident(1), incident(2))
        message = await told(slack)
        view = await asyncio.to_thread(slack.asked, message, ROLL_BACK)
        await asyncio.to_thread(slack.deliver, slack.submit(view))
        await soon(lambda: slack.replies(message), "the order is told")
        stored = [await redis.dump(key) async for key in redis.scan_iter("*")]
        status = repr(service.status())

    everything = caplog.text + status + repr(stored) + json.dumps(view)
    assert len(stored) > 5
    assert [secret for secret in (BOT_TOKEN, APP_TOKEN, "signing-s3cret") if secret in everything] == []


class Killed:
    """An alerting process of its own, with this workspace, to be killed."""

    def __init__(self, redis_url: str, slack: FakeSlack) -> None:
        script = Path(__file__).parents[2] / "support" / "alerting_process.py"
        env = {**os.environ, **slack.variables()}
        self.process = subprocess.Popen([sys.executable, str(script), redis_url, "0.2", STREAM], env=env)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.parametrize("history", [True, False], ids=["with history", "without"])
async def test_after_a_kill_between_request_and_answer_the_thread_goes_on_and_nothing_is_twice(
    redis: Redis, redis_url: str, slack: FakeSlack, history: bool
) -> None:
    if not history:
        slack.scopes.discard("channels:history")
    slack.answering.clear()
    first = Killed(redis_url, slack)
    try:
        await publish(redis, incident(1))
        await soon(lambda: slack.messages, "the request is under way")
    finally:
        await asyncio.to_thread(first.kill)
    slack.answering.set()
    async with running(redis, slack) as service:
        await publish(redis, incident(1, 2, state="resolved"))
        await settled(redis, "alerting:slack_app", 2)

    counts = service.status()["counts"]["slack_app"]
    # Without the scope nobody knows the thread of the first message: the second one is in the channel.
    assert [one.thread_ts for one in slack.messages] == [None, slack.messages[0].ts if history else None]
    assert counts == {"found" if history else "unsure": 1, "sent": 1, "duplicate": 1}


async def test_after_a_restart_changes_go_on_in_the_same_thread(redis: Redis, slack: FakeSlack) -> None:
    async with running(redis, slack):
        await publish(redis, incident(1))
        await settled(redis, "alerting:slack_app", 1)
    async with running(redis, slack):
        await publish(redis, incident(1, 2, severity="critical"))
        await settled(redis, "alerting:slack_app", 2)

    assert [one.thread_ts for one in slack.messages] == [None, slack.messages[0].ts]


async def test_a_message_that_somebody_deleted_is_followed_by_another_one(redis: Redis, slack: FakeSlack) -> None:
    async with running(redis, slack) as service:
        await publish(redis, incident(1))
        await settled(redis, "alerting:slack_app", 1)
        slack.messages.clear()
        await publish(redis, incident(1, 2, severity="critical"), incident(1, 3, state="resolved"))
        await settled(redis, "alerting:slack_app", 3)

    assert [one.thread_ts for one in slack.messages] == [None, slack.messages[0].ts]
    assert service.status()["counts"]["slack_app"] == {"sent": 3}


_GOOD = {"STABILITY_SLACK_BOT_TOKEN": "xoxb-s3cret", "STABILITY_SLACK_CHANNEL": "C0123456789"}


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("STABILITY_SLACK_BOT_TOKEN", "xoxp-s3cret", "is no bot token"),
        ("STABILITY_SLACK_BOT_TOKEN", "", "STABILITY_SLACK_CHANNEL is set without"),
        ("STABILITY_SLACK_CHANNEL", "#alerts", "is no channel id"),
        ("STABILITY_SLACK_APP_TOKEN", "s3cret", "is no app-level token"),
        ("STABILITY_SLACK_CHART", "loud", "expected one of auto, picture, off"),
        ("STABILITY_SLACK_USERS", "/no/such/file", "can't be read"),
        ("STABILITY_SLACK_USERS", "U0ADA: admin", "entry 1 of STABILITY_SLACK_USERS gives 'admin', expected read or"),
        ("STABILITY_SLACK_USERS", "ada: read", "names 'ada', expected a Slack user id"),
        ("STABILITY_SLACK_USERS", "{U0ADA: [", "is no YAML or JSON: line 1, column"),
    ],
)
def test_a_wrong_setting_stops_the_start_and_says_what_is_expected(variable: str, value: str, said: str) -> None:
    with pytest.raises(AlertingSettingsError, match=said) as caught:
        sinks_from_env(_GOOD | {variable: value}, [SlackAppSink])

    assert variable in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_library_that_is_missing_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "slack_sdk", None)

    with pytest.raises(
        AlertingSettingsError, match=r"slack_sdk is not installed: pip install 'stabilityboard\[slack\]'"
    ):
        sinks_from_env(_GOOD, [SlackAppSink])
