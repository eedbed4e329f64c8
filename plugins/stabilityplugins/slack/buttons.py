"""Buttons and the question before a rollback: the effect of a press, over any transport."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec
from redis.exceptions import RedisError

from stabilityalerting.actions import ActionRefused, Proposed, RollbackNow, RollbackRequest, fingerprint
from stabilityalerting.errors import SendError
from stabilityplugins.slack.blocks import MAX_MODAL_TITLE, button, context, cut, duration, mrkdwn, plain, section
from stabilityplugins.slack.messages import (
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
)
from stabilityplugins.slack.threads import CommandThreads
from stabilityplugins.slack.users import Scope
from stabilityplugins.slack.workspace import OpenCommand, Workspace

#: Slack shows an error to the user without an answer within 3 s. A question that takes longer than this to answer gets
#: a provisional answer.
ANSWER_S = 2.2
#: Life of a user's e-mail address in memory, seconds, and the number of them.
EMAIL_FOR_S = 3_600.0
MAX_EMAILS = 10_000
#: Concurrent presses; more are refused.
MAX_AT_ONCE = 64
#: Tolerated difference of the clocks of two servers, seconds.
CLOCKS_APART_S = 60.0
#: An answer to an older question is refused, seconds: the job has moved on.
MAX_AGE_S = 15 * 60.0
#: Callback id of the question.
CALLBACK = "stability_roll_back"
#: Longest reason, characters.
MAX_REASON = 200

_REASON = "reason"
_REASON_TEXT = "text"
_OF_INCIDENT = (ACK, MUTE, NOISE, ROLL_BACK, USEFUL)
_NOT_THERE = "The server can't do it now: it is not connected to what it stores. Try again, or open the page."

__all__ = ["CALLBACK", "MAX_AGE_S", "Asked", "Presses", "notice", "question"]


class Presses:
    """Applies the payloads of Slack's interactivity."""

    def __init__(self, workspace: Workspace, commands: CommandThreads) -> None:
        self.commands = commands
        self._workspace = workspace
        self._emails: dict[str, tuple[float, str]] = {}
        self._running: set[asyncio.Task[Any]] = set()

    async def first_time(self, delivery: str) -> bool:
        """Return True for the first call with a delivery, False for repetitions. Raises RedisError."""
        return await self._workspace.threads.first_time(delivery)

    async def take(self, payload: object) -> dict[str, Any] | None:
        """Apply one payload and return the answer, None for an empty one.

        The work of a press continues after the answer. Raises nothing.
        """
        if not isinstance(payload, dict) or self._workspace.actions is None:
            return None
        kind = payload.get("type")
        if kind == "block_actions":
            if len(self._running) >= MAX_AT_ONCE:
                self._workspace.counts["presses_refused"] += 1
                return None
            self._start(self._guarded(self._press(payload), payload))
            return None
        if kind == "view_submission" and _part(payload, "view").get("callback_id") == CALLBACK:
            task = self._start(self._guarded(self._submitted(payload), payload))
            done, _ = await asyncio.wait({task}, timeout=ANSWER_S)
            if not done:
                return _update("Roll back", "It takes longer than usual. The thread will say what became of it.")
            found = task.result()
            return found if isinstance(found, dict) else _update("Roll back", _NOT_THERE)
        return None

    async def aclose(self) -> None:
        """Cancel running work."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _guarded(self, work: Coroutine[Any, Any, Any], payload: dict[str, Any]) -> Any:
        problems = self._workspace.problems
        try:
            return await work
        except ActionRefused as error:
            return await self._refused(payload, str(error))
        except (RedisError, OSError) as error:
            problems.note("a press came to nothing", error)
            return await self._refused(payload, _NOT_THERE)
        except SendError as error:
            problems.note("a press was not answered", error)
            return await self._refused(payload, "Slack did not let the server answer in time. Press again.")
        except Exception as error:  # an internal error must not end the listening
            problems.note("a press came to nothing", error)
            return await self._refused(payload, "The server failed at it; its log says why.")

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
        self._workspace.counts[str(name)] += 1
        scope = await self._scope(payload)
        if scope != "command" and not (scope == "read" and name == ROLL_BACK):
            await self._whisper(
                payload,
                "You may look at this incident, but not act on it: you are not among those who may. Whoever runs "
                "Stabilityboard can add you to STABILITY_SLACK_USERS"
                + (" with the scope command." if scope == "read" else f" (you are {_user(payload)[0]})."),
            )
        elif asked is not None:
            await self._decide(payload, asked, approved=name == APPROVE)
        elif about is not None and name == ROLL_BACK:
            await self._ask(payload, about, may_order=scope == "command")
        elif about is not None:
            await self._act(payload, str(name), about)

    async def _act(self, payload: dict[str, Any], name: str, about: IncidentValue) -> None:
        """Acknowledge, rate or mute an incident."""
        actions = self._workspace.actions
        assert actions is not None
        who = _issuer(payload)
        person = _user(payload)[0]
        if name == ACK:
            holder = await actions.acknowledge(about.run, about.incident, who, f"Slack user {person}")
            if holder != who:
                await self._whisper(payload, f"{mrkdwn(holder, 200)} takes care of it already.")
        elif name in (USEFUL, NOISE):
            await actions.rate(about.run, about.incident, name == USEFUL, who, person)
            await self._whisper(payload, f"Noted: {'useful' if name == USEFUL else 'noise'}.")
        else:
            until = await actions.mute(about.run, about.incident, MUTE_MINUTES, who, "from Slack", person)
            spelled = time.strftime("%H:%M UTC", time.gmtime(until))
            channel, thread = _location(payload)
            await self._workspace.api.call(
                "chat.postMessage",
                channel=channel,
                thread_ts=thread or None,
                text=f"Muted until {spelled} by <@{person}>.",
            )

    async def _decide(self, payload: dict[str, Any], asked: ProposalValue, *, approved: bool) -> None:
        """Approve or decline a proposal; its message loses its buttons."""
        workspace = self._workspace
        assert workspace.actions is not None
        who = _issuer(payload)
        person = _user(payload)[0]
        channel, thread = _location(payload)
        if approved:
            news = await workspace.actions.approve(asked.run, asked.proposal, who, person)
            reason = f"approved by another person; {asked.reason}".rstrip("; ")
            await self.commands.begin(
                OpenCommand(asked.run, news.command_id, channel, thread, "", asked.by, asked.to_step, reason)
            )
        else:
            await workspace.actions.decline(asked.run, asked.proposal, who, person)
        content = decided(person, asked.by, asked.to_step, approved=approved)
        ts = _part(payload, "container").get("message_ts")
        await workspace.api.call("chat.update", channel=channel, ts=ts, text=content.text, blocks=content.blocks)

    async def _ask(self, payload: dict[str, Any], about: IncidentValue, *, may_order: bool) -> None:
        workspace = self._workspace
        assert workspace.actions is not None
        now = await workspace.actions.rollback_now(about.run, about.incident)
        channel, thread = _location(payload)
        unix_s = workspace.server.clock()
        sealed = ""
        if now.to_step is not None:
            head = fingerprint(now.head_key)
            checkpoint = fingerprint(now.checkpoint)
            asked = Asked(about.run, about.incident, channel, thread, head, now.to_step, checkpoint, unix_s)
            sealed = asked.sealed(workspace.secret)
        view = question(
            now,
            now.run_name or about.run,
            workspace.url(about.run, about.incident),
            sealed,
            unix_s=unix_s,
            may_order=may_order,
        )
        await workspace.api.call("views.open", trigger_id=payload.get("trigger_id"), view=view)

    # --- the answer to the question ------------------------------------------------------------------------------

    async def _submitted(self, payload: dict[str, Any]) -> dict[str, Any]:
        workspace = self._workspace
        assert workspace.actions is not None
        view = _part(payload, "view")
        asked = Asked.opened(view.get("private_metadata"), workspace.secret)
        if asked is None:
            return _update("Not rolled back", "This question is not one of ours. Press the button again.")
        if await self._scope(payload) != "command":
            return _update("Not rolled back", "You may not order this any more.")
        age_s = workspace.server.clock() - asked.at
        if not -CLOCKS_APART_S <= age_s <= MAX_AGE_S:
            return _update(
                "Not rolled back",
                f"This was asked {int(age_s // 60)} minutes ago and the job has gone on. Press the button again and "
                "look at what is true now.",
            )
        user_id = _user(payload)[0]
        reason = _reason_of(view)
        news = await workspace.actions.roll_back(
            RollbackRequest(
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
            content = proposal(user_id, news, asked.run_id, asked.to_step, reason)
            await workspace.api.call(
                "chat.postMessage",
                channel=asked.channel,
                thread_ts=asked.thread,
                text=content.text,
                blocks=content.blocks,
                reply_broadcast=True,
            )
            return {"response_action": "clear"}
        try:
            await self.commands.begin(
                OpenCommand(
                    asked.run_id, news.command_id, asked.channel, asked.thread, "", user_id, asked.to_step, reason
                )
            )
        except (RedisError, OSError) as error:
            workspace.problems.note("a thread will not report the outcome of a command", error)
            return _update("Roll back", "It is ordered. The thread can't tell what becomes of it: see the page.")
        return {"response_action": "clear"}

    # --- users and locations -------------------------------------------------------------------------------------

    async def _scope(self, payload: dict[str, Any]) -> Scope | None:
        """Return the scope of the user, None for one who is not in the file."""
        user_id = _user(payload)[0]
        users = self._workspace.users
        if user_id in users.by_id:
            return users.by_id[user_id]
        return users.by_email.get(await self._email(user_id)) if user_id and users.needs_email else None

    async def _email(self, user_id: str) -> str:
        now = time.monotonic()
        cached = self._emails.get(user_id)
        if cached is not None and now - cached[0] < EMAIL_FOR_S:
            return cached[1]
        try:
            found = await self._workspace.api.read("users.info", user=user_id)
        except SendError as error:
            self._workspace.problems.note(
                "can't ask for an e-mail address (scopes users:read, users:read.email)", error
            )
            return ""
        user = found.get("user")
        email = _part(user, "profile").get("email") if isinstance(user, dict) else None
        # The address of a guest from another workspace was not checked in this one.
        trusted = isinstance(user, dict) and not user.get("is_stranger") and not user.get("deleted")
        address = email.lower() if isinstance(email, str) and trusted else ""
        if len(self._emails) >= MAX_EMAILS:
            self._emails.clear()
        self._emails[user_id] = (now, address)
        return address

    async def _whisper(self, payload: dict[str, Any], text: str) -> None:
        """Show a text to the user alone."""
        channel, thread = _location(payload)
        user_id = _user(payload)[0]
        try:
            await self._workspace.api.call(
                "chat.postEphemeral", channel=channel, user=user_id, thread_ts=thread or None, text=text
            )
        except SendError as error:
            self._workspace.problems.note("an answer to a press did not arrive", error)


@dataclass(frozen=True, slots=True)
class Asked:
    """The facts in a question, carried by the question itself.

    Args:
        channel, thread: location of the answer.
        head, to_step, checkpoint: see ``RollbackRequest``. at: time of the question, unix seconds.
    """

    run_id: str
    incident_id: str
    channel: str
    thread: str
    head: str
    to_step: int
    checkpoint: str
    at: float

    def sealed(self, secret: str) -> str:
        """Return it as signed text."""
        text = msgspec.json.encode(self).decode()
        return f"{_seal(secret, text)}{text}"

    @classmethod
    def opened(cls, sealed: object, secret: str) -> Asked | None:
        """Read a signed text; None where the signature is wrong."""
        if not isinstance(sealed, str) or len(sealed) <= 64:
            return None
        seal = sealed[:64]
        text = sealed[64:]
        if not hmac.compare_digest(seal.encode(), _seal(secret, text).encode()):
            return None
        return msgspec.json.decode(text, type=cls)


def question(
    now: RollbackNow, run_name: str, url: str, sealed: str, *, unix_s: float, may_order: bool
) -> dict[str, Any]:
    """Return the view that asks.

    Args:
        sealed: of ``Asked.sealed``. may_order: the user may confirm it; else the view only shows it.
        unix_s: now.
    """
    blocks = [*_facts(now, run_name, unix_s)]
    can = may_order and not now.refused and now.to_step is not None
    if now.two_persons and can:
        blocks.append(
            section("*Two persons:* you propose it. It is sent when another person approves it in the thread.")
        )
    if now.warning and not now.refused:
        blocks.append(section(f"*Know first:* {mrkdwn(now.warning, 1_500)}"))
    if now.refused:
        blocks.append(section(f"*It can't be ordered now:* {mrkdwn(now.refused, 1_500)}"))
    elif not may_order:
        blocks.append(section("You may look. Ordering needs the role `command` (STABILITY_SLACK_USERS)."))
    if can:
        blocks.append(
            {
                "type": "input",
                "block_id": _REASON,
                "optional": True,
                "label": plain("Reason, for the record", 100),
                "element": {"type": "plain_text_input", "action_id": _REASON_TEXT, "max_length": MAX_REASON},
            }
        )
    blocks.append({"type": "actions", "elements": [button("Choose another checkpoint on the page", "open", url=url)]})
    view = _view("Roll back", blocks)
    if can:
        view["submit"] = plain("Propose" if now.two_persons else "Roll back", MAX_MODAL_TITLE)
        view["private_metadata"] = sealed
    return view


def notice(title: str, text: str) -> dict[str, Any]:
    """Return a view with a text alone."""
    return _view(title, [section(mrkdwn(text, 2_900))])


def _view(title: str, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "type": "modal",
        "callback_id": CALLBACK,
        "title": plain(title, MAX_MODAL_TITLE),
        "close": plain("Close", MAX_MODAL_TITLE),
        "blocks": blocks,
    }


def _facts(now: RollbackNow, run_name: str, unix_s: float) -> list[dict[str, Any]]:
    step = "has not begun a step" if now.step is None else f"is at step {now.step:,}"
    lines = [f"*Now:* run {mrkdwn(run_name, 200)} {step}, in segment {now.head}."]
    if now.to_step is None:
        return [section("\n".join(lines)), section(f"*No checkpoint is suggested.* {mrkdwn(now.text, 1_500)}")]
    age = "" if now.saved is None else f", saved {duration(unix_s - now.saved)} ago"
    lines.append(f"*Checkpoint:* step {now.to_step:,}{age}. {mrkdwn(now.text, 1_000)}")
    if now.checkpoint:
        lines.append(f"`{mrkdwn(now.checkpoint, 600).replace('`', chr(39))}`")
    if now.step is not None:
        lost = now.step - now.to_step
        lines.append(f"*Lost:* {lost:,} {'step' if lost == 1 else 'steps'} of training.")
    ranks = "Its rank stops" if now.ranks == 1 else f"All {now.ranks:,} ranks stop"
    will = f"*What will happen:* {ranks} at one step boundary, or none does. "
    will += f"Training goes on from step {now.to_step + 1:,}"
    if now.changes:
        will += ", with " + ", ".join(mrkdwn(change, 200) for change in now.changes)
    blocks = [section("\n".join(lines)), section(will + ".")]
    if now.cannot:
        blocks.append(context("Not changed: " + "; ".join(mrkdwn(why, 300) for why in now.cannot)))
    return blocks


def _reason_of(view: dict[str, Any]) -> str:
    """Return the reason given by the user, "" for none."""
    try:
        found = view["state"]["values"][_REASON][_REASON_TEXT]["value"]
    except (KeyError, TypeError):
        return ""
    return cut(found, MAX_REASON) if isinstance(found, str) else ""


def _seal(secret: str, text: str) -> str:
    key = hashlib.sha256(b"stability rollback question " + secret.encode()).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _update(title: str, text: str) -> dict[str, Any]:
    return {"response_action": "update", "view": notice(title, text)}


def _part(payload: dict[str, Any], name: str) -> dict[str, Any]:
    found = payload.get(name)
    return found if isinstance(found, dict) else {}


def _user(payload: dict[str, Any]) -> tuple[str, str]:
    """Return the id and the name of the user."""
    user = _part(payload, "user")
    name = user.get("username") or user.get("name") or user.get("id") or "unknown"
    return str(user.get("id") or ""), str(name)[:100]


def _issuer(payload: dict[str, Any]) -> str:
    return f"slack:{_user(payload)[1]}"


def _location(payload: dict[str, Any]) -> tuple[str, str]:
    """Return channel and thread of the message with the button."""
    container = _part(payload, "container")
    channel = container.get("channel_id") or _part(payload, "channel").get("id") or ""
    thread = _part(payload, "message").get("thread_ts") or container.get("thread_ts") or container.get("message_ts")
    return str(channel), str(thread or "")
