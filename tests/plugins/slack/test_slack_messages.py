"""What is sent to Slack keeps its published limits, and nothing of a run becomes markup in it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilityalerting import Alert, Branch, CommandNews, Curve, Facts, Notice, RollbackNow
from stabilityplugins.slack.blocks import mrkdwn
from stabilityplugins.slack.buttons import Asked, notice, question
from stabilityplugins.slack.curve import chart_of, picture_of, values_of
from stabilityplugins.slack.messages import Message, Shown, command_text, message, outcome_text, reply
from stabilityplugins.slack.workspace import ThreadLog
from support.incident_stream import incident
from support.slack.limits import errors_of_message, errors_of_view

#: Names as runs have them: long, with markup, mentions, from right to left, with controls that turn what follows.
NASTY = [
    "n" * 5_000,
    "<!channel> <@U0ADA> <https://evil.example|click> & *bold* `code`" * 40,
    "<script>alert(1)</script>" * 300,
    "ריצה לילית " * 500,
    "\u202egnp.exe \u2066 \u2067 \x00 \x1b[31m" * 200,
    "&" * 4_000,
    "\U0001f525" * 3_000,
]


def curve(name: str = "loss", values: Any = (2.0, 2.1, 2.0, 2.2, 9.0, 8.0)) -> Curve:
    steps = range(96, 96 + len(values))
    return Curve(name, [Branch(steps, list(values))], 100, (steps[-1], values[-1]))


def alert(name: str, **changes: Any) -> Alert:
    texts = dict.fromkeys(
        ("title", "text", "run_id", "node", "dataset", "label", "acknowledged_by", "status_word"), name
    )
    suggestion = {"action": "roll_back", "to_step": 50, "text": name, "source": "x"}
    event = incident(1) | texts | {"suggestion": suggestion, "rank": 3} | changes
    return Alert.from_json(json.dumps(event))


def errors(said: Message) -> list[str]:
    return errors_of_message({"text": said.text, "blocks": list(said.blocks)})


@pytest.mark.parametrize("name", NASTY, ids=["long", "mentions", "html", "rtl", "controls", "ampersands", "astral"])
def test_a_message_with_any_name_is_taken_by_slack_and_mentions_nobody(name: str) -> None:
    facts = Facts(name, name, curve(name), can_roll_back=True)
    for state in ("open", "resolved"):
        said = message(Shown(alert(name, state=state), facts, "http://board/" + "x" * 300, mute=True))
        assert errors(said) == []
    changes = ("opened", "escalated", "grouped", "handed_over", "resolved")
    told = [Notice(alert(name), change, "http://board", why=name) for change in changes]
    assert [errors(reply(one)) for one in told] == [
        [], [], [], [], [],
    ]  # fmt: skip
    news = CommandNews("c", "failed", name, name, ended=True, failed=True, passed=[("ready", 1.0)] * 50)
    for text in (command_text("U0ADA", 50, name, news), outcome_text(50, news)):
        assert errors_of_message({"text": text}) == []


@pytest.mark.parametrize("name", NASTY, ids=["long", "mentions", "html", "rtl", "controls", "ampersands", "astral"])
def test_a_question_with_any_name_is_taken_by_slack(name: str) -> None:
    now = RollbackNow(3, name, 120, 50, name, 0.0, [name] * 3, [name] * 3, name, ranks=2_048)
    sealed = Asked("r" * 128, "i" * 64, "C0123456789", "1.000001", "h" * 32, 50, "c" * 32, 0.0).sealed("secret")
    for refused in ("", name):
        now = replace(now, refused=refused, warning=name)
        assert errors_of_view(question(now, name, "http://board/x", sealed, unix_s=1.0, may_order=True)) == []
    assert errors_of_view(notice("Not rolled back", name)) == []


def test_a_message_says_what_where_since_when_how_bad_and_what_to_do() -> None:
    event = incident(1, severity="critical", rank=3, node="gpu-7", dataset="web", label="NaN or Inf")
    facts = Facts("night run", "vision", curve(values=(2.0, 2.1, 2.0, 2.2, math.nan, math.nan)))

    said = message(Shown(Alert.from_json(json.dumps(event)), facts, "http://board/x"))

    [fields] = [block["fields"] for block in said.blocks if "fields" in block]
    assert [field["text"] for field in fields] == [
        "*Run*\nnight run\nrun-1",
        "*What*\nNaN or Inf, critical",
        "*Since*\nstep 100, <!date^1700000000^{date_short_pretty} {time}|2023-11-14 22:13 UTC>",
        "*Project*\nvision",
        "*Where*\nrank 3, node gpu-7",
        "*Data set*\nweb",
    ]
    texts = [block["text"]["text"] for block in said.blocks if "text" in block]
    assert "*loss:* last good 2.2 (step 99), NaN from step 100 on (2 values), now NaN (step 101)" in texts
    assert "*What to do:* Roll back to step 50." in texts
    assert said.text == "\U0001f6a8 Loss spike at step 100: roll back to step 50 (run night run)"


def test_a_branch_that_was_left_tells_how_bad_it_was_and_the_other_one_how_it_is_now() -> None:
    left, after = Branch([100, 101], [9.0, math.inf], True), Branch([100, 101], [2.0, 1.9], False, "R1")
    forked = Curve("loss", [Branch([98, 99], [2.0, 2.1]), left, after], 100, (101, 1.9))

    assert values_of(forked).text() == (
        "last good 2.1 (step 99), peak 9 (step 100), infinite from step 101 on (1 value), now 1.9 (step 101)"
    )


def test_slacks_own_chart_shows_a_spike_of_one_step_and_is_left_out_where_it_would_lie() -> None:
    values = [2.0] * 100
    values[60] = 50.0
    shown = chart_of(curve(values=values))
    assert shown is not None
    [series] = shown["chart"]["series"]
    assert max(point["value"] for point in series["data"]) == 50.0
    assert len(series["data"]) == 13
    values[60] = math.nan
    assert chart_of(curve(values=values)) is None
    assert chart_of(Curve("loss", [Branch(range(9), [1.0] * 9), Branch(range(9), [1.0] * 9, True)], 4)) is None


@pytest.mark.parametrize(
    "values", [[math.nan] * 5, [1e308, -1e308, 0.0], [2.0], [0.0] * 9, [math.inf, 1.0, -math.inf], []]
)
def test_every_curve_becomes_a_picture(values: list[float]) -> None:
    drawn = picture_of(Curve("loss\x00" + "א" * 300, [Branch(range(len(values)), values)], 2))

    assert drawn.png.startswith(b"\x89PNG")
    assert 2_000 < len(drawn.png) < 60_000


def test_a_text_that_is_cut_ends_in_no_half_entity() -> None:
    for most in range(5, 40):
        text = mrkdwn("&<>" * 50, most)
        assert len(text) <= most
        assert text.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "") in ("…", "")


def test_an_answer_to_a_question_that_we_did_not_ask_is_none() -> None:
    asked = Asked("run-1", "i-1", "C0123456789", "1.1", "head", 50, "file", 1.0)
    sealed = asked.sealed("secret")

    assert Asked.opened(sealed, "secret") == asked
    assert Asked.opened(sealed, "other") is None
    assert Asked.opened(sealed.replace("run-1", "run-2"), "secret") is None
    assert [Asked.opened(text, "secret") for text in ("", "{}", None, "x" * 64, 5)] == [None] * 5


async def test_a_command_that_an_earlier_version_stored_is_followed(redis: Redis) -> None:
    stored = {
        "run_id": "r", "command_id": "c-1", "channel": "C0", "thread": "1.0", "reply": "2.0", "who": "U0ADA",
        "to_step": 5, "reason": "", "told": "Rollback to step 5 ordered",
    }  # fmt: skip
    await redis.hset("sb:alerting:slack_app:orders:slack_app", "c-1", json.dumps(stored))
    [command] = await ThreadLog(redis, "slack_app").commands()
    assert (command.command_id, command.to_step, command.text) == ("c-1", 5, "Rollback to step 5 ordered")
    await ThreadLog(redis, "slack_app").keep_command(command)
    assert json.loads(await redis.hget("sb:alerting:slack_app:orders:slack_app", "c-1")) == stored
