"""Slack's Web API: one call at a time, every answer judged, no secret in any text."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from stabilityalerting.errors import AlertingSettingsError, SendError
from stabilityalerting.sink import HTTP_TIMEOUT_S, MAX_ANSWER_CHARS, BeforeWrite, redact

SLACK_API_URL = "https://slack.com/api/"
#: Upper bound of ``Retry-After``, seconds.
MAX_RETRY_AFTER_S = 600.0
#: Error of Slack -> advice. These last until a person fixes them, perhaps within the hour of retries.
TO_MEND = {
    "not_in_channel": "invite the app: /invite @Stabilityboard in that channel",
    "channel_not_found": "check STABILITY_SLACK_CHANNEL; a private channel has to invite the app first",
    "is_archived": "unarchive the channel, or name another one in STABILITY_SLACK_CHANNEL",
    "missing_scope": "add the scope in the app's settings and install the app again (README of the Slack plug-in)",
    "restricted_action": "an administrator of the workspace has to let the app post there",
    "no_permission": "the app may not post there: an administrator of the workspace can change that",
}
#: Errors that only another token fixes, after a restart.
DEAD_TOKEN = frozenset({"invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired"})
#: Temporary errors of Slack.
PASSING = frozenset(
    {
        "accesslimited",
        "fatal_error",
        "internal_error",
        "message_limit_exceeded",
        "rate_limited",
        "ratelimited",
        "request_timeout",
        "service_unavailable",
        "team_added_to_org",
    }
)
#: Answers to a chart in a workspace without them.
NO_CHART = frozenset({"invalid_blocks", "invalid_blocks_format", "invalid_arguments"})
#: Answers about a message that is gone or can't be changed.
GONE = frozenset({"message_not_found", "thread_not_found", "cant_update_message", "edit_window_closed"})
_INSTALL = "pip install 'stabilityboard[slack]'"

__all__ = ["GONE", "NO_CHART", "PASSING", "SLACK_API_URL", "SlackApi", "check_installed"]

#: Awaited after the connection is open and before the request's first byte leaves.
_before_write: ContextVar[BeforeWrite | None] = ContextVar("before_write", default=None)


def check_installed() -> None:
    """Raise AlertingSettingsError where a library is not installed."""
    try:
        import aiohttp  # noqa: F401
        import slack_sdk  # noqa: F401
    except ImportError as error:
        raise AlertingSettingsError(
            f"STABILITY_SLACK_BOT_TOKEN is set, and {error.name} is not installed: {_INSTALL}"
        ) from None


class SlackApi:
    """One app in one workspace.

    Args:
        token: the bot's (``xoxb-...``), a secret.
        url: where the API is; another address is for tests.
        secrets: further strings that must not appear in logs and errors.
    """

    def __init__(self, token: str, url: str = SLACK_API_URL, secrets: Iterable[str] = ()) -> None:
        self._token = token
        self._url = url
        self.secrets = (token, *secrets)
        self._client: Any = None
        #: Method -> end of its rate limit, monotonic seconds.
        self._quiet_until: dict[str, float] = {}

    def client(self) -> Any:
        """Return slack_sdk's client, created at the first call, as it needs the event loop."""
        if self._client is None or self._client.session.closed:
            import aiohttp
            from slack_sdk.web.async_client import AsyncWebClient

            trace = aiohttp.TraceConfig()
            trace.on_connection_create_end.append(_connected)
            trace.on_connection_reuseconn.append(_connected)
            session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=2 * HTTP_TIMEOUT_S, sock_read=HTTP_TIMEOUT_S), trace_configs=[trace]
            )
            # No handlers of its own: it would repeat a message after a broken connection, which may have arrived.
            self._client = AsyncWebClient(
                self._token, self._url, session=session, retry_handlers=[], logger=_silent_logger()
            )
        return self._client

    async def call(self, method: str, before_write: BeforeWrite | None = None, **fields: Any) -> Mapping[str, Any]:
        """Call a method and return its answer.

        Args:
            method: as Slack spells it, ``chat.postMessage``.
            before_write: awaited once, after the connection is open and before the request leaves.

        Raises:
            SendError: Slack refused it, with Slack's name of the error as ``code``, or did not answer.
        """
        return await self._ask(method, before_write, json=_given(fields))

    async def read(self, method: str, **fields: Any) -> Mapping[str, Any]:
        """Call a method that reads, without JSON. Raises SendError."""
        return await self._ask(method, None, http_verb="GET", params=_given(fields))

    async def _ask(self, method: str, before_write: BeforeWrite | None, **sent: Any) -> Mapping[str, Any]:
        wait_s = self._quiet_until.get(method, 0.0) - time.monotonic()
        if wait_s > 0:
            raise SendError(f"slack_app: {method} waits for Slack's limit", recoverable=True, retry_after_s=wait_s)
        from slack_sdk.errors import SlackApiError, SlackClientError

        token = _before_write.set(before_write)
        try:
            answer = (await self.client().api_call(method, **sent)).data
        except SlackApiError as error:
            raise self._refused(method, error) from None
        except (SlackClientError, OSError, TimeoutError, ValueError, TypeError, AttributeError) as error:
            raise self._no_answer(method, error) from None
        except Exception as error:
            if not type(error).__module__.startswith("aiohttp"):
                raise
            raise self._no_answer(method, error) from None
        finally:
            _before_write.reset(token)
        if not isinstance(answer, dict):
            raise SendError(f"slack_app: {method} gave no answer that can be read", recoverable=True)
        return answer

    async def upload(self, name: str, content: bytes, title: str, alt: str, channel: str, thread: str) -> None:
        """Upload a picture to a thread. Raises SendError."""
        file = {"filename": name, "length": str(len(content)), "alt_txt": alt}
        begun = await self._ask("files.getUploadURLExternal", None, data=file)
        url = begun.get("upload_url")
        file_id = begun.get("file_id")
        if not isinstance(url, str) or not isinstance(file_id, str):
            raise SendError("slack_app: files.getUploadURLExternal gave no address", recoverable=True)
        try:
            client = self.client()
            async with client.session.post(url, data=content, proxy=client.proxy) as answer:
                status = answer.status
        except Exception as error:
            raise self._no_answer("upload", error) from None
        if status != 200:
            raise SendError(f"slack_app: the upload was answered {status}", recoverable=status >= 500)
        files = [{"id": file_id, "title": title}]
        await self.call("files.completeUploadExternal", files=files, channel_id=channel, thread_ts=thread)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.session.close()
            self._client = None

    def _no_answer(self, method: str, error: Exception) -> SendError:
        why = redact(str(error)[:MAX_ANSWER_CHARS], self.secrets)
        return SendError(f"slack_app: no answer to {method} ({type(error).__name__}: {why})", recoverable=True)

    def _refused(self, method: str, error: Any) -> SendError:
        response = error.response
        status = getattr(response, "status_code", getattr(response, "status", 0)) or 0
        retry_after_s = _retry_after(getattr(response, "headers", None) or {})
        data = getattr(response, "data", None)
        code = data.get("error") if isinstance(data, dict) else None
        if not isinstance(code, str):
            if retry_after_s is None and status == 200:
                return SendError(f"slack_app: {method} gave no answer that can be read", recoverable=True)
            code = "ratelimited" if status == 429 else ""
        if status == 429 or code in ("ratelimited", "rate_limited"):
            self._quiet_until[method] = time.monotonic() + (1.0 if retry_after_s is None else retry_after_s)
        recoverable = status >= 500 or status in (408, 425, 429) or code in PASSING or code in TO_MEND
        shown = redact(code or f"HTTP {status}", self.secrets)[:MAX_ANSWER_CHARS]
        hint = TO_MEND.get(code, "")
        if code in DEAD_TOKEN:
            hint = "set STABILITY_SLACK_BOT_TOKEN to the app's present token and restart the server"
        needed = data.get("needed") if isinstance(data, dict) else None
        if code == "missing_scope" and isinstance(needed, str):
            shown += f" ({needed[:60]})"
        text = f"slack_app: {method} was refused: {shown}" + (f"; {hint}" if hint else "")
        return SendError(text, recoverable=recoverable, retry_after_s=retry_after_s, code=code)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


async def _connected(_session: Any, _context: Any, _params: Any) -> None:
    before_write = _before_write.get()
    if before_write is not None:
        _before_write.set(None)
        await before_write()


def _retry_after(headers: Mapping[str, str]) -> float | None:
    for name in ("Retry-After", "retry-after"):
        try:
            seconds = float(headers[name])
        except (KeyError, ValueError, TypeError):
            continue
        return min(max(0.0, seconds), MAX_RETRY_AFTER_S) if seconds == seconds else None
    return None


def _silent_logger() -> logging.Logger:
    """Return a silent logger: slack_sdk logs its messages where the root logger is at DEBUG."""
    logger = logging.getLogger("stabilityplugins.slack.sdk")
    logger.setLevel(logging.CRITICAL)
    logger.propagate = False
    return logger
