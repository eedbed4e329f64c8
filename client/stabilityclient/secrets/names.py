"""Which names say that a secret follows, and which values below them say nothing."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["HIDDEN", "is_harmless", "is_secret_name", "names_a_digest", "words_of"]

#: What stands in the place of a secret.
HIDDEN = "(hidden)"
#: Names whose answer is remembered: the same ones come with each event.
MAX_NAMES = 4_096

#: Words of a name that say by themselves that a secret follows.
_SECRET_WORDS = frozenset([
    "apikey", "apikeys", "apitoken", "accesskey", "auth", "authorization", "bearer", "cookie", "credential",
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

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORDS = re.compile(r"[A-Za-z0-9]+")


def words_of(name: str) -> list[str]:
    """Return the words of a name, in small letters: ``wandbKey`` is ``wandb`` and ``key``."""
    return [word.lower() for word in _WORDS.findall(_CAMEL.sub("_", name))]


@lru_cache(MAX_NAMES)
def is_secret_name(name: str) -> bool:
    """Return whether what a name stands for is a secret: ``api_key``, ``HF_TOKEN``, ``--db.password``.

    Names of a tokenizer (``pad_token``, ``max_tokens``) are none.
    """
    words = words_of(name)
    for at, word in enumerate(words):
        if word in ("token", "apitoken") and (_TEXT_TOKENS & {*words[max(at - 1, 0) : at], *words[at + 1 : at + 2]}):
            continue
        if word in _SECRET_WORDS or word.endswith(_ENDS) or (at and (words[at - 1], word) in _SECRET_PAIRS):
            return True
    return bool(words) and words[-1] == "key" and len(words) < 3


@lru_cache(MAX_NAMES)
def names_a_digest(name: str) -> bool:
    """Return whether long mixes of letters and digits under a name are digests or ids: ``commit``, ``run_id``."""
    return not _DIGESTS.isdisjoint(words_of(name))


def is_harmless(value: str) -> bool:
    """Return whether a value of a secret name says nothing: what a switch has, or what is hidden already."""
    return value.lower() in ("", "true", "false", "none", "null", "yes", "no", "on", "off", "auto", HIDDEN)
