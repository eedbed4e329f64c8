"""Takes secrets out of what leaves the node: command lines, addresses, values of variables, lines of output.

A secret is found by the name before it (``--api-key x``, ``HF_TOKEN=x``, ``"password": "x"``), by its place (the user's
part of an address, what follows ``Bearer``), and by its look (the well-known beginnings of keys, and long texts that
are too mixed to be words). What is taken out becomes ``HIDDEN``. Where in doubt it is hidden: a command line that shows
one value less is of use, one that shows a key is a leak.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any

__all__ = ["HIDDEN", "clean_arguments", "clean_config", "clean_text", "clean_url", "is_secret_name", "resembles_key"]

#: What stands in the place of a secret.
HIDDEN = "(hidden)"
#: Longest text that is looked at, characters: an argument longer than that is cut, as is a line of output.
MAX_TEXT_CHARS = 4_096
#: A text of so many characters that mixes letters and digits is no word any more; keys have 20 to 200.
LONG_CHARS = 32
#: Changes from letters to digits and back that make it a mix: a word with a date has one.
MIN_CHANGES = 3
#: Levels of a config that are looked at, and the shortest text there that is a secret by its name.
MAX_DEPTH, MIN_CONFIG_CHARS = 16, 4

#: Words of a name that say by themselves that a secret follows.
_SECRET_WORDS = frozenset([
    "apikey", "apitoken", "accesskey", "auth", "authorization", "bearer", "cookie", "credential", "credentials",
    "creds", "jwt", "pass", "passphrase", "passwd", "password", "privatekey", "pwd", "secret", "secretkey",
    "secrets", "sig", "signature", "token",
])  # fmt: skip
#: Pairs of words that do.
_SECRET_PAIRS = frozenset(
    [("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key"), ("ssh", "key"), ("account", "key"),
     ("wandb", "key"), ("encryption", "key"), ("signing", "key"), ("storage", "key"), ("connection", "string")]
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
_URL_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,32}://)[^/\s@'\"]{1,2048}@")
_URL_QUERY = re.compile(r"([?&;])([A-Za-z0-9_.~%-]{1,64})=([^&;#\s'\"]{1,4096})")
#: How keys of well-known services begin; none of them begins a word.
_KNOWN = re.compile(
    r"""(?x)(?<![A-Za-z0-9])(?:
        (?:sk|pk|rk|ak)[-_](?:[a-z]{2,16}[-_]){0,3}[A-Za-z0-9_-]{12,} | hf_[A-Za-z0-9]{8,} | api_org_[A-Za-z0-9]{8,}
      | gh[pousr]_[A-Za-z0-9]{8,} | github_pat_[A-Za-z0-9_]{8,} | gl(?:pat|dt|rt|cbt)-[A-Za-z0-9_-]{8,}
      | xox[a-z]-[A-Za-z0-9-]{8,} | xapp-[A-Za-z0-9-]{8,} | (?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}
      | AIza[A-Za-z0-9_-]{20,} | ya29\.[A-Za-z0-9_-]{8,} | npm_[A-Za-z0-9]{8,} | pypi-[A-Za-z0-9_-]{8,}
      | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)? | dop_v1_[a-f0-9]{8,} | SG\.[A-Za-z0-9_.-]{16,}
      | sb_[A-Za-z0-9_-]{16,} | wandb_v1_[A-Za-z0-9_-]{8,} | lsv2_[a-z]{2}_[A-Za-z0-9_]{8,} | nvapi-[A-Za-z0-9_-]{8,}
    )"""
)
_BLOCK = re.compile(r"-----BEGIN [A-Z ]{0,40}KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}KEY-----|$)")
_BEARER = re.compile(r"(?i)\b(bearer|basic|token)(\s+)([A-Za-z0-9+/=._~-]{8,})")
#: ``name=value``, ``name: value``, ``"name": "value"``, and ``--name value``, in the middle of a text.
_VALUE = r"(?P<value>\(hidden\)|\"[^\"]*\"|'[^']*'|[^\s,;&'\")}\]]+)"
_NAMED = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_.-]{1,63})(?P<mark>['\"]?\s{0,3}[:=]\s{0,3})" + _VALUE)
_OPTION_IN_TEXT = re.compile(r"(?<![\w-])(?P<name>--?[A-Za-z][A-Za-z0-9_.-]{1,63})(?P<mark>\s{1,3})(?!-)" + _VALUE)
_OPTION = re.compile(r"^-{1,2}(?P<name>[A-Za-z][A-Za-z0-9_.-]*)$")
_ASSIGNED = re.compile(r"^(?P<name>[-+]{0,2}[A-Za-z_][A-Za-z0-9_.-]{0,63})(?P<mark>=|:=)(?P<value>.*)$", re.DOTALL)
_BLOB = re.compile(rf"[A-Za-z0-9+/_~-]{{{LONG_CHARS},}}={{0,2}}")


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(_CAMEL.sub("_", name))]


def is_secret_name(name: str) -> bool:
    """Return whether what a name stands for is a secret: ``api_key``, ``HF_TOKEN``, ``--db.password``.

    Names of a tokenizer (``pad_token``, ``max_tokens``) are none.
    """
    words = _words(name)
    for at, word in enumerate(words):
        if word in ("token", "apitoken") and (_TEXT_TOKENS & {*words[max(at - 1, 0) : at], *words[at + 1 : at + 2]}):
            continue
        if word in _SECRET_WORDS or (at and (words[at - 1], word) in _SECRET_PAIRS):
            return True
        # Written together: authtoken, dbpassword, clientsecret.
        if word.endswith(("password", "passwd", "secret", "apikey", "accesskey", "authtoken", "accesstoken")):
            return True
    return bool(words) and words[-1] == "key" and len(words) < 3


def resembles_key(value: str) -> bool:
    """Return whether a text looks like a key by itself, whatever its name."""
    if _KNOWN.search(value) or "-----BEGIN " in value:
        return True
    return any(_is_mixed(found) for found in _BLOB.findall(value))


def _is_mixed(blob: str) -> bool:
    """Return whether a long text is a mix of letters and digits, as no path, name or number is."""
    parts = [part for part in re.split(r"[/_=~+-]", blob) if part]
    longest = max(parts, key=len, default="")
    if len(longest) < 20:
        return False
    digits, letters = sum(map(str.isdigit, longest)), sum(map(str.isalpha, longest))
    changes = sum(a.isdigit() != b.isdigit() for a, b in itertools.pairwise(longest))
    return digits >= 3 and letters >= 3 and changes >= MIN_CHANGES


def clean_url(text: str) -> str:
    """Return a text whose addresses name no user and password, and hide secret parameters."""

    def query(found: re.Match[str]) -> str:
        mark, name, value = found.groups()
        return f"{mark}{name}={HIDDEN}" if is_secret_name(name) or resembles_key(value) else found[0]

    return _URL_QUERY.sub(query, _URL_USER.sub(r"\1", text))


def clean_text(text: str, *, digests: bool = False) -> str:
    """Return a free text (a line of output, a note of git) without what looks like a secret.

    Args:
        digests: long mixes of letters and digits stay where they can be a digest: hexadecimal ones.
    """
    text = clean_url(text[:MAX_TEXT_CHARS])
    if len(text) < 8:
        return text
    if "-----BEGIN " in text:
        text = _BLOCK.sub(HIDDEN, text)
    text = _BEARER.sub(_after_scheme, _KNOWN.sub(HIDDEN, text))
    text = _OPTION_IN_TEXT.sub(_named, _NAMED.sub(_named, text))
    return _BLOB.sub(lambda found: _blob(found[0], digests=digests), text)


def _after_scheme(found: re.Match[str]) -> str:
    scheme, space, value = found.groups()
    secret = len(value) >= LONG_CHARS or (scheme.lower() != "token" and any(map(str.isdigit, value)))
    return f"{scheme}{space}{HIDDEN}" if secret else found[0]


def _named(found: re.Match[str]) -> str:
    name, mark, value = found.group("name", "mark", "value")
    if not is_secret_name(name) or _is_harmless(value.strip("'\"")):
        return found[0]
    quote = value[0] if value[:1] in "'\"" else ""
    return f"{name}{mark}{quote}{HIDDEN}{quote}"


def _is_harmless(value: str) -> bool:
    """Return whether a value of a secret name says nothing: what a switch has, or what is hidden already."""
    return value.lower() in ("", "true", "false", "none", "null", "yes", "no", "on", "off", "auto", HIDDEN)


def _blob(blob: str, *, digests: bool) -> str:
    if digests and re.fullmatch(r"(?:[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{32})", blob):
        return blob
    return HIDDEN if _is_mixed(blob) else blob


def clean_arguments(arguments: Iterable[str]) -> list[str]:
    """Return a command line without its secrets, argument by argument.

    ``--api-key=x``, ``--api-key x``, ``-p x`` with a name that says so, ``FOO_TOKEN=x`` in front of a command, also
    inside of one argument (``bash -c "FOO_TOKEN=x train"``), addresses with a user, and what looks like a key.

    Example:
        >>> clean_arguments(["train.py", "--api-key", "x", "--lr=3e-4"])
        ['train.py', '--api-key', '(hidden)', '--lr=3e-4']
    """
    cleaned: list[str] = []
    follows = digest = False
    for argument in arguments:
        argument = argument[:MAX_TEXT_CHARS]
        option = _OPTION.match(argument)
        if follows and not (option and argument.startswith("--")):
            cleaned.append(argument if _is_harmless(argument) else HIDDEN)
            follows = False
            continue
        was_digest, follows, digest = digest, False, False
        assigned = _ASSIGNED.match(argument)
        if option is not None:
            follows = is_secret_name(option["name"])
            digest = bool(_DIGESTS.intersection(_words(option["name"])))
            cleaned.append(argument if len(argument) < LONG_CHARS else clean_text(argument))
        elif assigned is not None and is_secret_name(assigned["name"]) and not _is_harmless(assigned["value"]):
            cleaned.append(f"{assigned['name']}{assigned['mark']}{HIDDEN}")
        elif assigned is not None and _DIGESTS.intersection(_words(assigned["name"])):
            cleaned.append(clean_text(argument, digests=True))
        else:
            cleaned.append(clean_text(argument, digests=was_digest))
    return cleaned


def clean_config(value: Any, name: str = "", depth: int = MAX_DEPTH) -> Any:
    """Return a config without values whose names or looks say that they are secret; all else stays as it is.

    Jobs put all their arguments there. A number is no secret, so ``max_token: 2048`` stays, and a digest stays too.
    """
    if isinstance(value, dict) and depth:
        return {key: clean_config(each, str(key), depth - 1) for key, each in value.items()}
    if isinstance(value, list) and depth:
        return [clean_config(each, name, depth - 1) for each in value]
    if not isinstance(value, str):
        return value
    named = _words(name) != ["key"] and is_secret_name(name)
    if named and len(value) >= MIN_CONFIG_CHARS and not _is_harmless(value) and not value.startswith("<"):
        return HIDDEN
    return HIDDEN if _KNOWN.search(value) or "-----BEGIN " in value else _URL_USER.sub(r"\1", value)
