"""Why a sign-in at the provider led nowhere: a word for programs, a sentence for the page, a detail for the audit log.

The page is shown the sentence alone, by its code: nothing that came with a request is ever put on it.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["SENTENCES", "SignInRefused", "sentence"]

#: Code -> what the page says; ``{name}`` is what people call the provider, ``{url}`` our public address.
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


class SignInRefused(Exception):
    """Nobody is signed in.

    Args:
        code: one of ``SENTENCES``.
        detail: for the log and the audit log: what was given and what was expected, never a secret.
        who: the person, where the provider has said it and that was checked.
    """

    def __init__(self, code: str, detail: str, who: str = "") -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.who = who
        #: The page that was wanted.
        self.then = "/"


def sentence(code: str, name: str, url: str) -> str:
    """Return what the page says, "" for a code that there is not."""
    return SENTENCES.get(code, "").format(name=name, url=url)
