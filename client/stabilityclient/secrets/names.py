"""Which names say that a secret follows, and which values below them say nothing."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["HIDDEN", "hides", "is_secret_name", "names_a_digest"]

#: What stands in the place of a secret.
HIDDEN = "(hidden)"
#: Names whose answer is remembered: the same ones come with each event.
MAX_NAMES = 4_096

#: Words of a name that say by themselves that a secret follows.
_SECRET_WORDS = frozenset([
    "apikey", "apikeys", "apitoken", "accesskey", "auth", "authorization", "bearer", "cookie", "cookies", "credential",
    "credentials", "creds", "jwt", "pass", "passphrase", "passwd", "password", "passwords", "pat", "privatekey", "pw",
    "pwd", "secret", "secretkey", "secrets", "sig", "signature", "token",
])  # fmt: skip
#: Pairs of words that do.
_SECRET_PAIRS = frozenset(
    (first, last)
    for first in (
        "api", "access", "private", "secret", "ssh", "account", "wandb", "encryption", "signing", "storage", "license"
    )
    for last in ("key", "keys")
) | {("connection", "string")}  # fmt: skip
#: Ends of words that were written together: authtoken, dbpassword, clientsecret.
_ENDS = (
    "password", "passwords", "passwd", "passphrase", "secret", "apikey", "apikeys", "accesskey", "authtoken",
    "accesstoken", "refreshtoken", "idtoken", "bearertoken", "credentials",
)  # fmt: skip
#: Words beside ``token`` that make it a token of a text: ``--pad-token``, ``eos_token_id``.
_TEXT_TOKENS = frozenset([
    "added", "bos", "cls", "end", "eos", "first", "image", "last", "mask", "max", "min", "new", "next", "num",
    "pad", "per", "prefix", "sep", "special", "start", "stop", "suffix", "tool", "unk", "video", "audio", "id",
    "ids", "type", "types", "count", "drop", "dropping", "dispatcher",
])  # fmt: skip
#: Names whose long texts are digests and no keys.
_DIGESTS = frozenset([
    "checksum", "commit", "digest", "fingerprint", "hash", "md5", "rev", "revision", "sha", "sha1", "sha256",
    "uuid", "id", "run",
])  # fmt: skip

#: Words of names whose secrets people make of digits alone.
_NUMERIC = frozenset(["passphrase", "passwd", "password", "passwords", "pwd", "pw"])
#: What says nothing: values of a switch, and what is hidden already.
_HARMLESS = frozenset(["", "true", "false", "none", "null", "yes", "no", "on", "off", "auto", HIDDEN])
_NUMBER = re.compile(r"[-+]?\d{0,6}(?:\.\d*)?(?:[eE][-+]?\d{1,3})?%?")
#: So many letters and digits without a mark between them.
_MADE_UP = re.compile(r"[A-Za-z0-9]{10,}")

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORDS = re.compile(r"[A-Za-z0-9]+")


def _words(name: str) -> list[str]:
    """Return the words of a name, in small letters: ``wandbKey`` is ``wandb`` and ``key``."""
    return [word.lower() for word in _WORDS.findall(_CAMEL.sub("_", name))]


@lru_cache(MAX_NAMES)
def is_secret_name(name: str) -> bool:
    """Return whether what a name stands for is a secret: ``api_key``, ``HF_TOKEN``, ``--db.password``.

    Names of a tokenizer (``pad_token``, ``max_tokens``) are none, nor is ``key`` or ``sort_key``: see ``hides``.
    """
    words = _words(name)
    for at, word in enumerate(words):
        if word in ("token", "apitoken") and (_TEXT_TOKENS & {*words[max(at - 1, 0) : at], *words[at + 1 : at + 2]}):
            continue
        if word in _SECRET_WORDS or word.endswith(_ENDS) or (at and (words[at - 1], word) in _SECRET_PAIRS):
            return True
    return False


@lru_cache(MAX_NAMES)
def names_a_digest(name: str) -> bool:
    """Return whether long mixes of letters and digits under a name are digests or ids: ``commit``, ``run_id``."""
    return not _DIGESTS.isdisjoint(_words(name))


@lru_cache(MAX_NAMES)
def _is_any_key(name: str) -> bool:
    words = _words(name)
    return bool(words) and words[-1] == "key" and len(words) < 3


@lru_cache(MAX_NAMES)
def _takes_numbers(name: str) -> bool:
    return _NUMERIC.isdisjoint(_words(name))


def hides(name: str, value: str) -> bool:
    """Return whether a value of a name is to be hidden.

    What a switch has and what is hidden already says nothing, and a small number is a count: ``token: 50256``. A key of
    no known kind (``sort_key``, ``key=lambda row: row.step``) is a secret only where it looks made up.
    """
    if value.lower() in _HARMLESS:
        return False
    if is_secret_name(name):
        return not (_NUMBER.fullmatch(value) and _takes_numbers(name))
    return _is_any_key(name) and any(
        any(map(str.isdigit, part)) and any(map(str.isalpha, part)) for part in _MADE_UP.findall(value)
    )
