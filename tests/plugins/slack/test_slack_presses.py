"""What happens when people press buttons in Slack, over Socket Mode."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilityalerting import Facts, Proposed, fingerprint
from support.incident_stream import incident, publish
from support.slack.app_stack import ACK, MUTE, NOW, ROLL_BACK, running, soon, told
from support.slack.fake_slack import FakeSlack
from support.slack.pretended_actions import PretendedActions


def words(answer: dict[str, Any] | None) -> str:
    """Return what the modal says that an answer puts in the place of the question."""
    assert answer is not None
    assert answer["response_action"] == "update"
    return str(answer["view"]["blocks"][0]["text"]["text"])


async def test_acknowledge_is_done_in_the_name_of_who_pressed_and_the_thread_says_so(
    redis: Redis, slack: FakeSlack
) -> None:
    actions = PretendedActions()
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        message = await told(slack)
        await asyncio.to_thread(slack.press, message, ACK)
        await soon(lambda: actions.acknowledged, "it is acknowledged")
        await publish(redis, incident(1, 2, acknowledged_by="slack:ada"))
        await soon(lambda: slack.replies(message), "the thread says so")
        await asyncio.to_thread(slack.deliver, slack.click(message, ROLL_BACK) | {"actions": [
            {"action_id": ACK, "value": '{"run":"run-1","incident":"i-1"}'}
        ], "user": {"id": "U0ADA", "username": "ada2"}})  # fmt: skip
        await soon(lambda: slack.whispers, "the second one is told who has it")

    assert actions.acknowledged[0] == ("run-1", "i-1", "slack:ada")
    assert slack.replies(message)[0].text == "slack:ada takes care of it"
    assert ACK not in message.buttons()
    assert slack.whispers[0]["text"] == "slack:ada takes care of it already."


async def test_mute_is_offered_where_the_server_can_do_it_and_nowhere_else(redis: Redis, slack: FakeSlack) -> None:
    actions = PretendedActions(offers_mute=True)
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        message = await told(slack)
        await asyncio.to_thread(slack.press, message, MUTE)
        await soon(lambda: slack.replies(message), "the thread says so")
        actions.offers_mute = False
        await publish(redis, incident(2))
        await soon(lambda: len(slack.parents()) == 2, "the second one is told")

    assert actions.muted == [("run-1", "i-1", 60, "slack:ada")]
    assert slack.replies(message)[0].text == "Muted until 23:13 UTC by <@U0ADA>."
    assert MUTE not in slack.parents()[1].buttons()


async def test_whether_it_was_useful_is_asked_once_somebody_takes_care_of_it(redis: Redis, slack: FakeSlack) -> None:
    actions = PretendedActions()
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        message = await told(slack)
        before = list(message.buttons())
        await publish(redis, incident(1, 2, acknowledged_by="slack:ada"))
        await soon(lambda: "stability_noise" in message.buttons(), "it is asked")
        await asyncio.to_thread(slack.press, message, "stability_noise")
        await soon(lambda: slack.whispers, "it is noted")

    assert [name for name in before if name in ("stability_useful", "stability_noise")] == []
    assert actions.rated == [("i-1", False, "slack:ada")]
    assert slack.whispers[0]["text"] == "Noted: noise."


@pytest.mark.parametrize("action", [ACK, ROLL_BACK])
async def test_who_is_not_named_may_look_and_is_told_so_alone(redis: Redis, slack: FakeSlack, action: str) -> None:
    actions = PretendedActions()
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        message = await told(slack)
        await asyncio.to_thread(slack.press, message, action, "U0MAL", "mallory")
        await soon(lambda: slack.whispers, "it is refused")

    assert slack.whispers[0]["user"] == "U0MAL"
    assert "You may look at this incident, but not act on it" in slack.whispers[0]["text"]
    assert (actions.acknowledged, slack.views, len(slack.messages)) == ([], [], 1)


async def test_who_may_read_sees_what_is_true_now_and_can_order_nothing(redis: Redis, slack: FakeSlack) -> None:
    actions = PretendedActions()
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        message = await told(slack)
        view = await asyncio.to_thread(slack.asked, message, ROLL_BACK, "U0BOB", "bob")
        ada = await asyncio.to_thread(slack.asked, message, ROLL_BACK)
        answer = await asyncio.to_thread(slack.deliver, slack.submit(ada, user="U0BOB", name="bob"))

    assert "submit" not in view
    assert words(answer) == "You may not order this any more."
    assert actions.orders == []


async def test_somebody_is_known_by_the_e_mail_address_that_slack_has(redis: Redis, slack: FakeSlack) -> None:
    slack.emails = {"U0EVE": "Eve@Example.com"}
    actions = PretendedActions()
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        message = await told(slack)
        for _ in range(2):
            await asyncio.to_thread(slack.press, message, ACK, "U0EVE", "eve")
        await soon(lambda: len(actions.acknowledged) == 2, "it is acknowledged")

    assert sum(name == "users.info" for name, _ in slack.calls) == 1


async def test_the_question_says_what_is_true_now_and_the_thread_what_became_of_the_order(
    redis: Redis, slack: FakeSlack
) -> None:
    actions = PretendedActions()
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        message = await told(slack)
        view = await asyncio.to_thread(slack.asked, message, ROLL_BACK)
        assert await asyncio.to_thread(slack.deliver, slack.submit(view, "bad data")) == {"response_action": "clear"}
        await soon(lambda: len(slack.messages) == 2, "the order is told")
        actions.tell("done", "Rollback to step 50 done in 0.8 s.", ended=True)
        await soon(lambda: len(slack.messages) == 3, "the outcome is told")

    shown = json.dumps(view["blocks"])
    for fact in ("is at step 120, in segment 2", "step 50, saved", "70 steps of training", "All 8 ranks", "x 0.5"):
        assert fact in shown
    [order] = actions.orders
    assert (order.run_id, order.incident_id, order.who, order.reason) == ("run-1", "i-1", "slack:ada", "bad data")
    assert (order.head, order.to_step, order.checkpoint) == (fingerprint("key-2"), 50, fingerprint("/ckpt/50"))
    assert [one.text for one in slack.replies(message)] == [
        "Rollback to step 50 ordered by <@U0ADA>: bad data\nRollback to step 50 done in 0.8 s.",
        "\u2705 Rollback to step 50 done in 0.8 s.",
    ]


async def test_the_outcome_is_told_after_a_restart_in_between(redis: Redis, slack: FakeSlack) -> None:
    actions = PretendedActions()
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        message = await told(slack)
        view = await asyncio.to_thread(slack.asked, message, ROLL_BACK)
        await asyncio.to_thread(slack.deliver, slack.submit(view))
        await soon(lambda: len(slack.messages) == 2, "the order is told")
    actions.tell("expired", "It expired.", "0 of 8 ranks answered", ended=True, failed=True)
    async with running(redis, slack, actions):
        await soon(lambda: len(slack.messages) == 3, "the outcome is told")

    assert slack.messages[2].text == (
        "\u274c The rollback to step 50 was not carried out (expired): 0 of 8 ranks answered"
    )
    assert slack.messages[2].broadcast


async def test_where_an_order_takes_two_persons_it_is_proposed_and_another_one_decides_in_the_thread(
    redis: Redis, slack: FakeSlack
) -> None:
    actions = PretendedActions(proposed=Proposed("p-1", "Roll back to step 50", NOW + 900))
    actions.now = replace(actions.now, two_persons=True)
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        message = await told(slack)
        view = await asyncio.to_thread(slack.asked, message, ROLL_BACK)
        await asyncio.to_thread(slack.deliver, slack.submit(view, "bad data"))
        await soon(lambda: len(slack.messages) == 2, "it is proposed")
        proposal = slack.messages[1]
        before = proposal.text
        await asyncio.to_thread(slack.press, proposal, "stability_approve", "U0BOB", "bob")
        await soon(lambda: slack.whispers, "who may only read can't approve")
        slack.emails = {"U0EVE": "eve@example.com"}
        await asyncio.to_thread(slack.press, proposal, "stability_approve", "U0EVE", "eve")
        await soon(lambda: proposal.updates, "it is approved")
        await soon(lambda: len(slack.messages) == 3, "the order is told")

    assert view["submit"]["text"] == "Propose"
    assert before == "<@U0ADA> proposes: Roll back to step 50 (bad data)"
    assert actions.decided == [("approved", "p-1", "slack:eve", "U0EVE")]
    assert proposal.text == "Approved by <@U0EVE>: the rollback to step 50 that <@U0ADA> proposed."
    assert proposal.buttons() == {}
    assert slack.messages[2].thread_ts == message.ts


async def test_an_answer_after_fifteen_minutes_is_refused(redis: Redis, slack: FakeSlack) -> None:
    actions, now = PretendedActions(), [NOW]
    async with running(redis, slack, actions, clock=lambda: now[0]):
        await publish(redis, incident(1))
        message = await told(slack)
        view = await asyncio.to_thread(slack.asked, message, ROLL_BACK)
        now[0] += 15 * 60 + 1
        answer = await asyncio.to_thread(slack.deliver, slack.submit(view))

    assert "was asked 15 minutes ago and the job has gone on" in words(answer)
    assert actions.orders == []


async def test_what_the_server_refuses_is_said_where_it_was_pressed(redis: Redis, slack: FakeSlack) -> None:
    actions = PretendedActions(refuse="The checkpoint has changed since you were asked.")
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        message = await told(slack)
        view = await asyncio.to_thread(slack.asked, message, ROLL_BACK)
        answer = await asyncio.to_thread(slack.deliver, slack.submit(view))
        forged = view | {"private_metadata": re.sub(r'"to_step":50', '"to_step":10', view["private_metadata"])}
        other = await asyncio.to_thread(slack.deliver, slack.submit(forged))

    assert words(answer) == "The checkpoint has changed since you were asked."
    assert "not one of ours" in words(other)
    assert len(slack.messages) == 1


async def test_who_pressed_is_told_when_slack_does_not_open_the_question(redis: Redis, slack: FakeSlack) -> None:
    async with running(redis, slack):
        await publish(redis, incident(1))
        message = await told(slack)
        await asyncio.to_thread(slack.deliver, slack.click(message, ROLL_BACK) | {"trigger_id": "of yesterday"})
        await soon(lambda: slack.whispers, "somebody is told")

    assert slack.whispers[0]["text"] == "Slack did not let the server answer in time. Press again."


async def test_an_envelope_that_comes_twice_is_acted_on_once(redis: Redis, slack: FakeSlack) -> None:
    actions = PretendedActions()
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        message = await told(slack)
        click = slack.click(message, ACK)
        for _ in range(3):
            await asyncio.to_thread(slack.deliver, click, "envelope-twice")
        await asyncio.to_thread(slack.press, message, ROLL_BACK)
        await soon(lambda: slack.views, "all before it is done")

    assert len(actions.acknowledged) == 1


async def test_a_slow_server_is_answered_for_within_three_seconds(redis: Redis, slack: FakeSlack) -> None:
    actions, go = PretendedActions(), asyncio.Event()
    original = actions.roll_back

    async def slow(order: Any) -> Any:
        await go.wait()
        return await original(order)

    actions.roll_back = slow  # type: ignore[method-assign]
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        message = await told(slack)
        view = await asyncio.to_thread(slack.asked, message, ROLL_BACK)
        answer = await asyncio.to_thread(slack.deliver, slack.submit(view))
        go.set()
        await soon(lambda: len(slack.messages) == 2, "it is done all the same")

    assert "The thread will say" in words(answer)
    assert slack.late == []


@pytest.mark.parametrize("how", ["disconnect", "drop"])
async def test_a_connection_that_slack_ends_is_followed_by_another(redis: Redis, slack: FakeSlack, how: str) -> None:
    actions = PretendedActions()
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        message = await told(slack)
        before = slack.sockets[-1]
        await asyncio.to_thread(getattr(slack, how))
        await soon(lambda: slack.sockets and slack.sockets[-1] is not before, "another connection is there")
        await asyncio.to_thread(slack.press, message, ACK)
        await soon(lambda: actions.acknowledged, "it works")


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"type": "block_actions"},
        {"type": "block_actions", "actions": [{"action_id": ACK, "value": "{"}], "user": 5},
        {"type": "block_actions", "actions": [{"action_id": ROLL_BACK, "value": '{"run": 1}'}]},
        {"type": "view_submission", "view": {"callback_id": "stability_roll_back", "private_metadata": 7}},
        {"type": "view_submission", "view": {"callback_id": "another"}},
        {"type": "shortcut"},
    ],
)
async def test_a_payload_that_can_not_be_read_harms_nobody(redis: Redis, slack: FakeSlack, payload: Any) -> None:
    actions = PretendedActions()
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        message = await told(slack)
        await asyncio.to_thread(slack.deliver, payload)
        await asyncio.to_thread(slack.press, message, ACK)
        await soon(lambda: actions.acknowledged, "the next press works")

    assert len(actions.acknowledged) == 1


async def test_without_a_server_behind_it_a_message_has_a_link_and_no_buttons(redis: Redis, slack: FakeSlack) -> None:
    actions = PretendedActions(shown=Facts(gone=True))
    async with running(redis, slack, actions):
        await publish(redis, incident(1))
        message = await told(slack)

    assert list(message.buttons()) == ["stability_open"]
