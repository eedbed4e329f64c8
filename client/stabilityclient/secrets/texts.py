"""Cleans free texts and addresses. Each pattern takes time in proportion to the text, for any content."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache

__all__ = [
    "HIDDEN",
    "MAX_TEXT_CHARS",
    "NAMED_USER",
    "clean_text",
    "clean_url",
    "hides",
    "is_secret_name",
    "names_a_digest",
    "resembles_key",
]

#: Replacement of a secret.
HIDDEN = "(hidden)"
#: Names whose answer is remembered: the same ones come with each event.
MAX_NAMES = 4_096

#: Words of a name that alone mark a secret.
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
#: Words next to ``token`` that make it a token of a text: ``--pad-token``, ``eos_token_id``.
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

#: Words of names whose secrets may be digits alone.
_NUMERIC = frozenset(["passphrase", "passwd", "password", "passwords", "pwd", "pw"])
#: Harmless values: those of a switch, and hidden ones.
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
    """Return whether the value of a name is a secret: ``api_key``, ``HF_TOKEN``, ``--db.password``.

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

    Values of a switch and hidden ones are harmless, and a small number is a count: ``token: 50256``. A key of
    no recognised kind (``sort_key``, ``key=lambda row: row.step``) is a secret only where it looks made up.
    """
    if value.lower() in _HARMLESS:
        return False
    if is_secret_name(name):
        return not (_NUMBER.fullmatch(value) and _takes_numbers(name))
    return _is_any_key(name) and any(
        any(map(str.isdigit, part)) and any(map(str.isalpha, part)) for part in _MADE_UP.findall(value)
    )


#: Longest text that is cleaned as one, characters: more than any event has. The rest is cut.
MAX_TEXT_CHARS = 256 * 1024
#: A text of so many characters that mixes letters and digits is no word any more; keys have 20 to 200.
LONG_CHARS = 32
#: Changes from letters to digits and back that make it a mix: a word with a date has one.
MIN_CHANGES = 3
#: Longest name that is looked at, characters.
MAX_NAME_CHARS = 64

#: An address with a user: all up to the last @ before its path; a password may hold a slash, a port may not.
_URL_USER = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]{0,32}://)"
    r"(?:[^/?#\s:@'\"]{1,256}:(?!\d{1,5}(?:[/?#\s'\"]|$))[^\s'\"]{1,512}@|[^/?#\s'\"]{1,2048}@)"
)
#: The same where the text was cut before the @.
_URL_CUT = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]{0,32}://)[^/?#\s:@'\"]{1,256}:(?=[^\s/@'\"]*[^\d\s/@'\"])[^\s/@'\"]+(?=…|\.{3}|$)"
)
_URL_QUERY = re.compile(r"([?&;#])([A-Za-z0-9_.~%\[\]-]{1,64})=([^&;#\s'\"]{1,4096})")
#: An address of the web: its host, and its path.
_WEB = re.compile(r"(https?://)([^\s/'\"<>?#]{1,255})(/[^\s'\"<>?#]{1,2048})")
#: Hosts that make the rest of a path a secret: the address alone allows to post.
_HOOK_HOST = re.compile(r"(?i)(?:^|\.)hooks?\.|webhook|^hc-ping\.")
_HOOK_PATH = re.compile(r"(?i)/(?:[a-z-]{0,16}webhooks?[a-z]?|hooks?|integration|key)/|/bot(?=\d{4,}:)")
#: Beginnings of keys of common services; no word begins so.
_KNOWN = re.compile(
    r"""(?x)(?<![A-Za-z0-9])(?:
        (?:sk|pk|rk|ak)[-_](?:[a-z]{2,16}[-_]){0,3}[A-Za-z0-9_-]{12,} | hf_[A-Za-z0-9]{8,} | api_org_[A-Za-z0-9]{8,}
      | gh[pousr]_[A-Za-z0-9]{8,} | github_pat_[A-Za-z0-9_]{8,} | gl(?:pat|dt|rt|cbt)-[A-Za-z0-9_-]{8,}
      | xox[a-z]-[A-Za-z0-9-]{8,} | xapp-[A-Za-z0-9-]{8,} | (?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}
      | AIza[A-Za-z0-9_-]{20,} | ya29\.[A-Za-z0-9_-]{8,} | npm_[A-Za-z0-9]{8,} | pypi-[A-Za-z0-9_-]{8,}
      | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)? | dop_v1_[a-f0-9]{8,} | SG\.[A-Za-z0-9_.-]{16,}
      | sb_[A-Za-z0-9_-]{16,} | wandb_v1_[A-Za-z0-9_-]{8,} | lsv2_[a-z]{2}_[A-Za-z0-9_]{8,} | nvapi-[A-Za-z0-9_-]{8,}
      | gsk_[A-Za-z0-9]{16,} | r8_[A-Za-z0-9]{16,} | rpa_[A-Za-z0-9]{16,} | dckr_pat_[A-Za-z0-9_-]{8,}
      | gls[ac]_[A-Za-z0-9_]{16,} | AGE-SECRET-KEY-[A-Z0-9]{8,} | shpat_[a-f0-9]{8,} | xai-[A-Za-z0-9]{16,}
    )"""
)
_BLOCK = re.compile(r"-----BEGIN [A-Z ]{0,40}KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}KEY-----|$)")
_BEARER = re.compile(r"(?i)\b(bearer|basic|token)(\s+)([A-Za-z0-9+/=._~-]{8,})")
#: ``name=value``, ``name: value``, ``"name": "value"``, ``name => value``, escaped or not, in the middle of a text.
_NAMED = re.compile(r"(?<![A-Za-z0-9_.-])(?P<name>[A-Za-z0-9_.-]{2,})\\?['\"]?\s{0,3}[:=]=?>?\s{0,3}")
#: ``--name value``, and ``'--name', 'value'`` as Python shows a command line.
_OPTION = re.compile(r"(?<![\w-])(?P<name>--?[A-Za-z][A-Za-z0-9_.-]+)(?:\s{1,3}|['\"],\s{0,3})(?!-|['\"]-)")
#: A value: in quotes (that may miss their end where the text was cut), or up to a space or the next ``, name=``.
_VALUE = re.compile(
    r"\(hidden\)|(?P<quote>\\?['\"])(?:(?!(?P=quote))[^\n])*(?:(?P=quote))?"
    r"|[^\s,;&'\")}\]]+(?:[,;&)}\]]+(?![\w.-]{1,64}\s?[:=])[^\s,;&'\")}\]]+)*"
)
#: The value of a header that has several words.
_HEADER = re.compile(r"[^'\"\n]+")
#: ``-u name:password``, ``--user name:password``.
NAMED_USER = ("-u", "-U", "--user", "--proxy-user")
_USER = re.compile(
    r"(?<![\w-])((?:-[uU]|--(?:proxy-)?user)(?:[\s=]{1,3}|['\"],\s{0,3})['\"]?[^\s:'\"/]{1,128}:)([^\s'\"]+)"
)
#: Commands whose short option is a password.
_TOOL = re.compile(
    r"(\b(?:sshpass|mysql(?:dump|admin)?|mariadb|mongo(?:sh|dump)?|(?:docker|podman) login|redis-cli|ldapsearch)\b"
    r"[^|;&\n]{0,200}?\s-[pwa]\s{0,3})([^\s'\"-][^\s'\"]*)"
)
#: ``the password is x``: with a digit in it, as no word has.
_SAID = re.compile(
    r"(?i)\b(pass(?:word|phrase|wd)|secret|token|api[ _-]?key)(\s(?:is|was|of)\s['\"]?)"
    r"(?=[^\s'\"]{0,64}\d)(?=[^\s'\"]{0,64}[a-z])([^\s'\"]{6,})"
)
_BLOB = re.compile(rf"[A-Za-z0-9+/_~-]{{{LONG_CHARS},}}={{0,2}}")
_BETWEEN = re.compile(r"([/_=~+-])")
_DIGEST = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{32})")


def resembles_key(value: str) -> bool:
    """Return whether a text looks like a key by itself, under any name."""
    if _KNOWN.search(value) or "-----BEGIN " in value:
        return True
    return any(_is_mixed(found) for found in _BLOB.findall(value))


def _is_mixed(blob: str) -> bool:
    """Return whether a long text is a mix of letters and digits, as no path, name or number is."""
    longest = max(_BETWEEN.split(blob), key=len, default="")
    if len(longest) < 20:
        return False
    digits, letters = sum(map(str.isdigit, longest)), sum(map(str.isalpha, longest))
    changes = sum(a.isdigit() != b.isdigit() for a, b in itertools.pairwise(longest))
    return digits >= 3 and letters >= 3 and changes >= MIN_CHANGES


def clean_url(text: str) -> str:
    """Return a text whose addresses name no user and password, no secret parameter and no way into a webhook."""
    if "://" in text:
        text = _WEB.sub(_hook, _URL_CUT.sub(rf"\1{HIDDEN}", _URL_USER.sub(r"\1", text)))
    return _URL_QUERY.sub(_parameter, text) if "=" in text else text


def _parameter(found: re.Match[str]) -> str:
    mark, name, value = found.groups()
    secret = is_secret_name(name) or name.lower().endswith("key") or resembles_key(value)
    return f"{mark}{name}={HIDDEN}" if secret else found[0]


def _hook(found: re.Match[str]) -> str:
    scheme, host, path = found.groups()
    if _HOOK_HOST.search(host):
        return f"{scheme}{host}/{HIDDEN}"
    place = _HOOK_PATH.search(path)
    return f"{scheme}{host}{path[: place.end()]}{HIDDEN}" if place and place.end() < len(path) else found[0]


def clean_text(text: str, *, digests: bool = False, ids: bool = False) -> str:
    """Return a free text (a line of output, a message of an exception, a note) without parts that look like a secret.

    Args:
        digests: long mixes of letters and digits stay where they can be a digest: hexadecimal ones.
        ids: all of them stay: the text is an id or a digest by its name.
    """
    text = clean_url(text[:MAX_TEXT_CHARS])
    if len(text) < 8:
        return text
    if "-----BEGIN " in text:
        text = _BLOCK.sub(HIDDEN, text)
    text = _KNOWN.sub(HIDDEN, text)
    if " " in text or ":" in text or "=" in text or "\n" in text:
        text = _clean_words(text)
    return text if ids or len(text) < LONG_CHARS else _BLOB.sub(lambda found: _blob(found, digests=digests), text)


def _clean_words(text: str) -> str:
    """Clean a text of several words."""
    text = _SAID.sub(rf"\1\2{HIDDEN}", _BEARER.sub(_after_scheme, text))
    if "-" in text:
        text = _TOOL.sub(rf"\1{HIDDEN}", _USER.sub(_user, _hide_after(_OPTION, text)))
    return _hide_after(_NAMED, text)


def _after_scheme(found: re.Match[str]) -> str:
    scheme, space, value = found.groups()
    secret = len(value) >= LONG_CHARS or (scheme.lower() != "token" and re.search(r"[A-Z0-9+/=_]", value[1:]))
    return f"{scheme}{space}{HIDDEN}" if secret else found[0]


def _user(found: re.Match[str]) -> str:
    before, value = found.groups()
    return found[0] if value.isdigit() and before.rstrip(":").rpartition(" ")[2].isdigit() else f"{before}{HIDDEN}"


def _hide_after(names: re.Pattern[str], text: str) -> str:
    """Hide the values that follow secret names; the value after any other name is examined by itself."""
    parts, at = [], 0
    for found in names.finditer(text):
        name = found["name"][-MAX_NAME_CHARS:]
        if found.start() < at or not (is_secret_name(name) or name[-3:].lower() == "key"):
            continue
        header = name.lower().endswith(("authorization", "cookie")) and text[found.end() : found.end() + 1] not in "'\""
        value = (_HEADER if header else _VALUE).match(text, found.end())
        if value is None or not hides(name, value[0].strip("\\'\"")):
            continue
        quote = "" if header else value["quote"] or ""
        closed = quote and value[0].endswith(quote) and len(value[0]) > len(quote)
        parts += [text[at : found.end()], quote, HIDDEN, quote if closed else ""]
        at = value.end()
    return "".join([*parts, text[at:]]) if parts else text


def _blob(found: re.Match[str], *, digests: bool) -> str:
    blob = found[0]
    if not _is_mixed(blob) or (digests and _DIGEST.fullmatch(blob)):
        return blob
    if not blob.startswith("/") and not ("/" in blob and found.string[: found.start()].endswith(".")):
        return HIDDEN
    # A path, as base64 hardly ever begins like one: the folder that looks like a key is hidden, one of a hub's
    # snapshots (a digest) and all others stay.
    return "".join(HIDDEN if _is_mixed(part) and not _DIGEST.fullmatch(part) else part for part in _BETWEEN.split(blob))
