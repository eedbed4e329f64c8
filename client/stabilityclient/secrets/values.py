"""Cleans command lines, configs, and the data of events."""

from __future__ import annotations

import os
import re

from stabilityclient.secrets.texts import (
    HIDDEN,
    LONG_CHARS,
    NAMED_USER,
    clean_text,
    clean_url,
    hides,
    is_secret_name,
    names_a_digest,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["clean_arguments", "clean_config", "clean_event", "clean_name"]

#: Longest argument of a command line, characters.
MAX_ARGUMENT_CHARS = 4_096
#: Levels of data that are examined, deeper than a server takes; lower ones are hidden.
MAX_DEPTH = 32
#: The shortest text of a config that is a secret by its name, characters.
MIN_CONFIG_CHARS = 4
#: Fields of events that are paths or files to load from: only their addresses are cleaned.
_PATHS = frozenset(["bad", "files", "folder", "path", "python", "script"])
#: Fields of events that are ids or digests, with any look.
_IDS = frozenset([
    "command_id", "fingerprint", "id", "kept", "key", "request", "segment_key", "serial", "source", "uuid",
])  # fmt: skip
#: Fields of events that hold names of metrics and of data sets.
_METRICS = frozenset(["datasets", "roles"])
#: Key of a name next to ``value`` in a list: ``{"name": "HF_TOKEN", "value": "x"}``.
_PAIR = ("name", "key")
#: Commands whose short option is a password: option by command.
_TOOLS = {
    "sshpass": "-p", "mysql": "-p", "mysqldump": "-p", "mysqladmin": "-p", "mariadb": "-p", "mongo": "-p",
    "mongosh": "-p", "mongodump": "-p", "login": "-p", "redis-cli": "-a", "ldapsearch": "-w",
}  # fmt: skip

#: A value that any name hides which hides some.
_ANY = "a1b2c3d4e5f6"

_OPTION_ARGUMENT = re.compile(r"^-{1,2}(?P<name>[A-Za-z][A-Za-z0-9_.-]*)$")
_ASSIGNED = re.compile(r"^(?P<name>[-+]{0,2}[A-Za-z_][A-Za-z0-9_.-]{0,63})(?P<mark>=|:=)(?P<value>.*)$", re.DOTALL)


def clean_arguments(arguments: Iterable[str]) -> list[str]:
    """Return a command line without its secrets, argument by argument.

    ``--api-key=x``, ``--api-key x``, ``-p x`` with a secret's name, ``-u name:x``, ``FOO_TOKEN=x`` in front of a
    command, also inside one argument (``bash -c "FOO_TOKEN=x train"``), addresses with a user, and texts like a
    key.

    Example:
        >>> clean_arguments(["train.py", "--api-key", "x", "--lr=3e-4"])
        ['train.py', '--api-key', '(hidden)', '--lr=3e-4']
    """
    cleaned: list[str] = []
    before = password = ""
    follows = False
    for argument in arguments:
        argument = argument[:MAX_ARGUMENT_CHARS]
        option = _OPTION_ARGUMENT.match(argument)
        if follows and not (option and argument.startswith("--")):
            cleaned.append(HIDDEN if before == password or hides(before, argument) else argument)
            follows = False
        elif password and argument.startswith(password) and len(argument) > len(password) and option:
            cleaned.append(password + HIDDEN)
        else:
            cleaned.append(_argument(argument, before))
            follows = bool(option and (argument == password or hides(option["name"], _ANY)))
        password = _TOOLS.get(os.path.basename(argument), password)
        before = argument
    return cleaned


def _argument(argument: str, before: str) -> str:
    """Return one argument without secrets; ``before`` is the argument in front."""
    assigned = _ASSIGNED.match(argument)
    if before in NAMED_USER and ":" in argument and not argument.startswith("-"):
        return clean_text(f"{before} {argument}")[len(before) + 1 :]
    if assigned is not None and hides(assigned["name"], assigned["value"]):
        return f"{assigned['name']}{assigned['mark']}{HIDDEN}"
    if _OPTION_ARGUMENT.match(argument):
        return argument if len(argument) < LONG_CHARS else clean_text(argument)
    digest = names_a_digest(
        before if assigned is None and before.startswith("-") else assigned["name"] if assigned else ""
    )
    return clean_text(argument, digests=digest)


def clean_config(value: Any, name: str = "", depth: int = MAX_DEPTH) -> Any:
    """Return a config without values that are secret by name or look; all else is unchanged.

    Jobs put all their arguments there. A number is no secret, so ``max_token: 2048`` stays, and a digest stays too.
    """
    if isinstance(value, dict | list):
        if not depth:
            return HIDDEN if value else value
        if isinstance(value, list):
            return _clean_list(value, name, depth)
        if is_secret_name(name):
            return {_clean_key(key): _hidden(each) for key, each in value.items()}
        named = next((value[each] for each in _PAIR if isinstance(value.get(each), str)), "")
        return {
            _clean_key(key): clean_config(each, named if named and key == "value" else str(key), depth - 1)
            for key, each in value.items()
        }
    if not isinstance(value, str):
        return value
    if len(value) >= MIN_CONFIG_CHARS and hides(name, value) and not value.startswith("<"):
        return HIDDEN
    return clean_text(value, digests=True, ids=names_a_digest(name))


def _clean_list(values: list[Any], name: str, depth: int) -> list[Any]:
    """Clean a list; one of texts alone may be a command line, in which a text names the next one."""
    texts = [each for each in values if isinstance(each, str)]
    if not is_secret_name(name) and len(texts) == len(values) and any(text.startswith("-") for text in texts):
        return list(clean_arguments(values))
    return [clean_config(each, name, depth - 1) for each in values]


def _hidden(value: Any) -> Any:
    """Return the value below a secret name: numbers and switches stay, texts do not."""
    if isinstance(value, dict | list):
        return HIDDEN if value else value
    return HIDDEN if isinstance(value, str) and hides("secret", value) else value


def _clean_key(key: Any) -> Any:
    return clean_text(key, digests=True, ids=True) if isinstance(key, str) else key


def clean_name(name: str) -> str:
    """Return the name of a metric, a data set or a phase without addresses' secrets: it may hold any word else."""
    return clean_url(name)


def clean_event(value: Any, name: str = "", depth: int = MAX_DEPTH) -> Any:
    """Return the data of an event, or of a report of health, without secrets in any of its texts, at any depth.

    A text is cleaned by its field: a path is still the place to load from, an id still the same
    id. A field that is unknown is a free text.
    """
    if isinstance(value, str):
        if name in _PATHS:
            return clean_url(value)
        return clean_text(value, digests=True, ids=name in _IDS)
    if not isinstance(value, dict | list | tuple):
        return value
    if not depth:
        return HIDDEN if value else value
    if not isinstance(value, dict):
        return [clean_event(each, name, depth - 1) for each in value]
    if name in _METRICS:
        return _clean_names(value, depth)
    cleaned = {}
    for key, each in value.items():
        named = isinstance(key, str) and key not in _IDS and isinstance(each, str | dict | list) and is_secret_name(key)
        cleaned[_clean_key(key)] = clean_config(each, key, depth - 1) if named else clean_event(each, key, depth - 1)
    return cleaned


def _clean_names(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return clean_name(value)
    if isinstance(value, dict) and depth:
        return {_clean_names(key, depth - 1): _clean_names(each, depth - 1) for key, each in value.items()}
    return value if isinstance(value, int | float | None) else HIDDEN
