"""Why a sign-in at the provider led nowhere: a word for programs, a sentence for the page, a detail for the audit log.

The page is shown the sentence alone, by its code: no text of a request is ever put on it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from stabilitybackend.access.audit import AuditLog

__all__ = ["SENTENCES", "Refusals", "SignInRefused", "sentence"]

#: The same refusal of the same person is logged this often, seconds: anybody can cause one.
SAME_REFUSAL_S = 60.0
#: Refusals with a time of their last log line; the oldest goes.
MAX_REFUSALS = 1000
#: Code -> the page's sentence; ``{name}`` is the provider's display name, ``{url}`` the public address.
SENTENCES: Mapping[str, str] = {
    "provider_away": "{name} can't be reached from this server. Try again in a moment, or use a key.",
    "provider_wrong": "{name} answered what this server can't use. The server's log says why.",
    "cancelled": "The sign-in was cancelled at {name}.",
    "provider_refused": "{name} refused the sign-in. The server's log says why.",
    "unknown_sign_in": "This sign-in is older than ten minutes or was used before. Begin again.",
    "other_browser": "This sign-in was not begun in this browser, or another one after it. Begin again, at {url}.",
    "token_bad": "What {name} sent does not hold: nobody was signed in. The server's log says why.",
    "no_name": "{name} does not say who you are in a way that this board can use. The server's log says why.",
    "store_away": "The store of this server does not answer now. Try again in a moment.",
    "no_role": "You are signed in at {name}, but no role here fits you or your groups. Ask whoever runs this board for "
    "one, or sign in as somebody else.",
}  # fmt: skip
_LOG = logging.getLogger(__name__)


class SignInRefused(Exception):
    """The sign-in failed.

    Args:
        code: one of ``SENTENCES``.
        detail: for the log and the audit log: the value given and the one expected, never a secret.
        who: the person, where the provider has named one and that was checked.
    """

    def __init__(self, code: str, detail: str, who: str = "") -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.who = who
        #: The page that was wanted.
        self.then = "/"


class Refusals:
    """Refused sign-ins in the audit log, each kind once a minute: they must not push out the users' actions."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log
        #: Person and code -> when it was logged last, and how many since.
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    async def note(self, refused: SignInRefused, address: str) -> None:
        """Note a failed sign-in. Raises Unavailable when Redis is away."""
        now, key = time.monotonic(), (refused.who, refused.code)
        last, more = self._seen.pop(key, (float("-inf"), 0))
        if now - last < SAME_REFUSAL_S:
            self._seen[key] = (last, more + 1)
            return
        self._seen[key] = (now, 0)
        while len(self._seen) > MAX_REFUSALS:
            del self._seen[next(iter(self._seen))]
        _LOG.warning("sign-in refused (%s): %s", refused.code, refused.detail)
        counted = f"{more} more like it before" if more else ""
        detail = "; ".join(filter(None, (refused.detail, counted, address)))
        await self._log.add(refused.who, None, "login.refused", refused.code, detail)


def sentence(code: str, name: str, url: str) -> str:
    """Return the page's sentence, "" for a code that there is not."""
    return SENTENCES.get(code, "").format(name=name, url=url)
