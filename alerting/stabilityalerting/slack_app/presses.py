"""What happens when somebody presses a button or answers a question in Slack, whichever way it came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from redis.exceptions import RedisError

from stabilityalerting.actions import ActionRefused, Order, Proposed, fingerprint
from stabilityalerting.errors import SendError

from .messages import (
    ACK,
    APPROVE,
    DECLINE,
    MUTE,
    MUTE_MINUTES,
    NOISE,
    ROLL_BACK,
    USEFUL,
    IncidentValue,
    ProposalValue,
    decided,
    proposal,
    value_of,
)  # fmt: skip
from .modal import CALLBACK, MAX_AGE_S, Asked, notice, question, reason_of
from .orders import Orders
from .parts import Parts
from .people import Scope
from .texts import mrkdwn

#: Slack shows an error to whoever pressed when no answer is there after 3 s. A question that takes longer than this to
#: answer is answered with a word, and done all the same.
ANSWER_S = 2.2
#: How long the e-mail address of a user is believed, seconds, and of how many.
EMAIL_FOR_S, MAX_EMAILS = 3_600.0, 10_000
#: Presses that are worked on at once; more are refused in words.
MAX_AT_ONCE = 64
#: Clocks of two servers that take presses may be so far apart, seconds.
CLOCKS_APART_S = 60.0
_OF_INCIDENT = (ACK, MUTE, NOISE, ROLL_BACK, USEFUL)
_NOT_THERE = "The server can't do it now: it is not connected to what it stores. Try again, or open the page."

__all__ = ["Presses"]


class Presses:
    """Takes the payloads of Slack's interactivity."""

    def __init__(self, parts: Parts, orders: Orders) -> None:
        self._parts = parts
        self.orders = orders
        self._emails: dict[str, tuple[float, str]] = {}
        self._running: set[asyncio.Task[Any]] = set()

    async def first_time(self, what: str) -> bool:
        """Say whether this is delivered for the first time; from now on it is not. Raises what Redis raises."""
        return await self._parts.threads.first_time(what)

    async def take(self, payload: object) -> dict[str, Any] | None:
        """Act on one payload and return what Slack is answered, None for nothing but that it came.

        What a press starts goes on after the answer; nothing is raised.
        """
        if not isinstance(payload, dict) or self._parts.actions is None:
            return None
        kind = payload.get("type")
        if kind == "block_actions":
            if len(self._running) >= MAX_AT_ONCE:
                self._parts.counts["presses_refused"] += 1
                return None
            self._start(self._guarded(self._press(payload), payload))
            return None
        if kind == "view_submission" and _of(payload, "view").get("callback_id") == CALLBACK:
            task = self._start(self._guarded(self._submitted(payload), payload))
            done, _ = await asyncio.wait({task}, timeout=ANSWER_S)
            if not done:
                return _update("Roll back", "It takes longer than usual. The thread will say what became of it.")
            found = task.result()
            return found if isinstance(found, dict) else _update("Roll back", _NOT_THERE)
        return None

    async def aclose(self) -> None:
        """End what is under way."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _guarded(self, work: Coroutine[Any, Any, Any], payload: dict[str, Any]) -> Any:
        try:
            return await work
        except ActionRefused as error:
            return await self._refused(payload, str(error))
        except (RedisError, OSError) as error:
            self._parts.trouble.note("a press came to nothing", error)
            return await self._refused(payload, _NOT_THERE)
        except SendError as error:
            self._parts.trouble.note("a press was not answered", error)
            return await self._refused(payload, "Slack did not let the server answer in time. Press again.")
        except Exception as error:  # a fault of ours must not end the listening
            self._parts.trouble.note("a press came to nothing", error)
            return await self._refused(payload, "The server failed at it; its log says why.")
        return None

    async def _refused(self, payload: dict[str, Any], why: str) -> dict[str, Any] | None:
        if payload.get("type") == "view_submission":
            return _update("Not rolled back", why)
        await self._whisper(payload, why)
        return None

    # --- buttons -------------------------------------------------------------------------------------------------

    async def _press(self, payload: dict[str, Any]) -> None:
        actions = payload.get("actions")
        action = actions[0] if isinstance(actions, list) and actions and isinstance(actions[0], dict) else {}
        name = action.get("action_id")
        asked = value_of(action.get("value"), ProposalValue) if name in (APPROVE, DECLINE) else None
        about = value_of(action.get("value"), IncidentValue) if name in _OF_INCIDENT else None
        if asked is None and about is None:
            return  # "Open" opens a page by itself, and any other button belongs to another app
        self._parts.counts[str(name)] += 1
        scope = await self._scope(payload)
        if scope != "command" and not (scope == "read" and name == ROLL_BACK):
            await self._whisper(
                payload,
                "You may look at this incident, but not act on it: you are not among those who may. Whoever runs "
                "Stabilityboard can add you to STABILITY_SLACK_USERS"
                + (" with the scope command." if scope == "read" else f" (you are {_user(payload)[0]})."),
            )
            return
        if asked is not None:
            await self._decide(payload, asked, approved=name == APPROVE)
            return
        assert about is not None
        if name == ROLL_BACK:
            await self._ask(payload, about, may_order=scope == "command")
            return
        assert self._parts.actions is not None
        who, person = _issuer(payload), _user(payload)[0]
        if name == ACK:
            holder = await self._parts.actions.acknowledge(about.run, about.incident, who, f"Slack user {person}")
            if holder != who:
                await self._whisper(payload, f"{mrkdwn(holder, 200)} takes care of it already.")
        elif name in (USEFUL, NOISE):
            await self._parts.actions.rate(about.run, about.incident, name == USEFUL, who, person)
            await self._whisper(payload, f"Noted: {'useful' if name == USEFUL else 'noise'}.")
        else:
            until = await self._parts.actions.mute(about.run, about.incident, MUTE_MINUTES, who, "from Slack", person)
            spelled = time.strftime("%H:%M UTC", time.gmtime(until))
            await self._reply(payload, f"Muted until {spelled} by <@{person}>.")

    async def _decide(self, payload: dict[str, Any], asked: ProposalValue, *, approved: bool) -> None:
        """Approve or decline what somebody proposed; the message about it loses its buttons."""
        parts = self._parts
        assert parts.actions is not None
        who, person = _issuer(payload), _user(payload)[0]
        channel, thread = _place(payload)
        if approved:
            news = await parts.actions.approve(asked.run, asked.proposal, who, person)
            reason = f"approved by another person; {asked.reason}".rstrip("; ")
            await self.orders.begin(channel, thread, asked.by, asked.to_step, reason, asked.run, news)
        else:
            await parts.actions.decline(asked.run, asked.proposal, who, person)
        said = decided(person, asked.by, asked.to_step, approved=approved)
        ts = _of(payload, "container").get("message_ts")
        await parts.api.call("chat.update", channel=channel, ts=ts, text=said.text, blocks=said.blocks)

    async def _ask(self, payload: dict[str, Any], about: IncidentValue, *, may_order: bool) -> None:
        parts = self._parts
        assert parts.actions is not None
        now = await parts.actions.rollback_now(about.run, about.incident)
        channel, thread = _place(payload)
        unix_s, sealed = parts.clock(), ""
        if now.to_step is not None:
            head, checkpoint = fingerprint(now.head_key), fingerprint(now.checkpoint)
            asked = Asked(about.run, about.incident, channel, thread, head, now.to_step, checkpoint, unix_s)
            sealed = asked.sealed(parts.secret)
        view = question(
            now,
            now.run_name or about.run,
            parts.url(about.run, about.incident),
            sealed,
            unix_s=unix_s,
            may_order=may_order,
        )
        await parts.api.call("views.open", trigger_id=payload.get("trigger_id"), view=view)

    # --- the answer to the question ------------------------------------------------------------------------------

    async def _submitted(self, payload: dict[str, Any]) -> dict[str, Any]:
        parts = self._parts
        assert parts.actions is not None
        view = _of(payload, "view")
        asked = Asked.opened(view.get("private_metadata"), parts.secret)
        if asked is None:
            return _update("Not rolled back", "This question is not one of ours. Press the button again.")
        if await self._scope(payload) != "command":
            return _update("Not rolled back", "You may not order this any more.")
        age_s = parts.clock() - asked.at
        if not -CLOCKS_APART_S <= age_s <= MAX_AGE_S:
            return _update(
                "Not rolled back",
                f"This was asked {int(age_s // 60)} minutes ago and the job has gone on. Press the button again and "
                "look at what is true now.",
            )
        user_id, reason = _user(payload)[0], reason_of(view)
        news = await parts.actions.roll_back(
            Order(
                asked.run_id,
                asked.incident_id,
                asked.head,
                asked.to_step,
                asked.checkpoint,
                _issuer(payload),
                user_id,
                reason,
                f"slack-{view.get('id')}",
            )
        )
        if isinstance(news, Proposed):
            said = proposal(user_id, news, asked.run_id, asked.to_step, reason)
            await parts.api.call(
                "chat.postMessage", channel=asked.channel, thread_ts=asked.thread, text=said.text, blocks=said.blocks,
                reply_broadcast=True,
            )  # fmt: skip
            return {"response_action": "clear"}
        try:
            await self.orders.begin(asked.channel, asked.thread, user_id, asked.to_step, reason, asked.run_id, news)
        except (RedisError, OSError) as error:
            parts.trouble.note("the thread will not tell what became of an order", error)
            return _update("Roll back", "It is ordered. The thread can't tell what becomes of it: see the page.")
        return {"response_action": "clear"}

    # --- who, and where ------------------------------------------------------------------------------------------

    async def _scope(self, payload: dict[str, Any]) -> Scope | None:
        """Return what the person may do, None for one who is not in the file."""
        user_id, people = _user(payload)[0], self._parts.people
        if user_id in people.by_id:
            return people.by_id[user_id]
        return people.by_email.get(await self._email(user_id)) if user_id and people.needs_email else None

    async def _email(self, user_id: str) -> str:
        now = time.monotonic()
        known = self._emails.get(user_id)
        if known is not None and now - known[0] < EMAIL_FOR_S:
            return known[1]
        try:
            found = await self._parts.api.read("users.info", user=user_id)
        except SendError as error:
            self._parts.trouble.note("can't ask for an e-mail address (scopes users:read, users:read.email)", error)
            return ""
        user = found.get("user")
        profile = user.get("profile") if isinstance(user, dict) else None
        email = profile.get("email") if isinstance(profile, dict) else None
        # A guest of another workspace brings an address that nobody here has checked.
        trusted = isinstance(user, dict) and not user.get("is_stranger") and not user.get("deleted")
        address = email.lower() if isinstance(email, str) and trusted else ""
        if len(self._emails) >= MAX_EMAILS:
            self._emails.clear()
        self._emails[user_id] = (now, address)
        return address

    async def _whisper(self, payload: dict[str, Any], text: str) -> None:
        """Tell something to whoever pressed, and to nobody else."""
        channel, thread = _place(payload)
        user_id = _user(payload)[0]
        try:
            await self._parts.api.call(
                "chat.postEphemeral", channel=channel, user=user_id, thread_ts=thread or None, text=text
            )
        except SendError as error:
            self._parts.trouble.note("an answer to a press did not arrive", error)

    async def _reply(self, payload: dict[str, Any], text: str) -> None:
        channel, thread = _place(payload)
        await self._parts.api.call("chat.postMessage", channel=channel, thread_ts=thread or None, text=text)


def _of(payload: dict[str, Any], name: str) -> dict[str, Any]:
    found = payload.get(name)
    return found if isinstance(found, dict) else {}


def _user(payload: dict[str, Any]) -> tuple[str, str]:
    """Return the id and the name of who pressed."""
    user = _of(payload, "user")
    name = user.get("username") or user.get("name") or user.get("id") or "unknown"
    return str(user.get("id") or ""), str(name)[:100]


def _issuer(payload: dict[str, Any]) -> str:
    return f"slack:{_user(payload)[1]}"


def _place(payload: dict[str, Any]) -> tuple[str, str]:
    """Return channel and thread of the message that was pressed in."""
    container, pressed_in = _of(payload, "container"), _of(payload, "message")
    channel = container.get("channel_id") or _of(payload, "channel").get("id") or ""
    thread = pressed_in.get("thread_ts") or container.get("thread_ts") or container.get("message_ts") or ""
    return str(channel), str(thread)


def _update(title: str, text: str) -> dict[str, Any]:
    return {"response_action": "update", "view": notice(title, text)}
