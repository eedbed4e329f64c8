"""Permissions of Slack users: a small file from their ids or e-mail addresses to a scope."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from stabilityalerting.errors import AlertingSettingsError

Scope = Literal["read", "command"]
VARIABLE = "STABILITY_SLACK_USERS"
#: Limits of the file: users and bytes.
MAX_USERS = 10_000
MAX_FILE_BYTES = 1024 * 1024
_USER_ID = re.compile(r"[UW][A-Z0-9]{2,30}")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")

__all__ = ["Scope", "Users", "read_users"]


@dataclass(frozen=True, slots=True)
class Users:
    """The users in the file.

    Args:
        by_id: Slack user id -> scope. by_email: e-mail address, lower case -> scope.
    """

    by_id: Mapping[str, Scope]
    by_email: Mapping[str, Scope]

    @property
    def needs_email(self) -> bool:
        """True where Slack has to be asked for addresses."""
        return bool(self.by_email)


def read_users(text: str) -> Users:
    """Read ``STABILITY_SLACK_USERS``: the path of a YAML or JSON file, or that text itself.

    Raises:
        AlertingSettingsError: the file is missing, or a line is not ``user: scope``.
    """
    inline = "{" in text or "\n" in text or re.match(r"\s*[^/\s:]+:\s", text) is not None
    source = VARIABLE if inline else f"the file of {VARIABLE}"
    if not inline:
        try:
            path = Path(text)
            if path.stat().st_size > MAX_FILE_BYTES:
                raise AlertingSettingsError(f"{source} is larger than {MAX_FILE_BYTES:,} bytes")
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise AlertingSettingsError(
                f"{source} can't be read ({type(error).__name__}): give the path of a file, or lines 'U012ABC: command'"
            ) from None
    found = _parsed(text, source)
    if not isinstance(found, dict):
        raise AlertingSettingsError(f"{source} is no mapping, expected lines 'U012ABC: command'")
    if len(found) > MAX_USERS:
        raise AlertingSettingsError(f"{source} names {len(found):,} users, expected at most {MAX_USERS:,}")
    by_id: dict[str, Scope] = {}
    by_email: dict[str, Scope] = {}
    for number, (who, scope) in enumerate(found.items(), 1):
        if scope not in get_args(Scope):
            raise AlertingSettingsError(f"entry {number} of {source} gives {scope!r:.40}, expected read or command")
        if isinstance(who, str) and _USER_ID.fullmatch(who):
            by_id[who] = scope
        elif isinstance(who, str) and _EMAIL.fullmatch(who):
            by_email[who.lower()] = scope
        else:
            raise AlertingSettingsError(
                f"entry {number} of {source} names {who!r:.60}, expected a Slack user id (U012ABC) or an e-mail address"
            )
    return Users(by_id, by_email)


def _parsed(text: str, source: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "somewhere"
        raise AlertingSettingsError(f"{source} is no YAML or JSON: {where}") from None
