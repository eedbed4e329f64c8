"""Rights of users signed in elsewhere: a TOML file names users and groups.

Who somebody is, a proxy or a provider says; what that allows is decided here alone, at each call. So a line that is
taken out of the file counts from the next start of the server on, for sessions that are open too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stabilitybackend.access.auth import RESERVED_NAMES, ROLES, Principal
from stabilitybackend.base.errors import SettingsError
from stabilitybackend.base.settings import Settings

__all__ = ["MAX_NAME_CHARS", "Grant", "Roles", "is_name", "wrong_setting"]

#: Longest name of a person, characters.
MAX_NAME_CHARS = 200
#: Of several groups the strongest role counts.
_STRENGTH = ("viewer", "operator", "admin")


@dataclass(frozen=True)
class Grant:
    """Right of a user or a group: a role, everywhere or in one project."""

    role: str
    project: str | None = None

    def principal(self, name: str, *, session: bool = False, proxied: bool = False) -> Principal:
        """Return the person with this role."""
        return Principal(name, frozenset(ROLES[self.role]), None, self.project, session=session, proxied=proxied)


@dataclass(frozen=True)
class Roles:
    """The file. ``users``, ``groups``: by name. ``default``: of everybody else, None: refused."""

    users: Mapping[str, Grant] = field(default_factory=dict)
    groups: Mapping[str, Grant] = field(default_factory=dict)
    default: Grant | None = None

    @classmethod
    def of(cls, settings: Settings, wanted_by: str) -> Roles:
        """Return the roles of the file. Raises SettingsError where it is missing or can't be read.

        Args:
            wanted_by: the setting that needs it.
        """
        if settings.roles is None:
            raise wrong_setting("roles", "nothing", f"a file that says what the people of {wanted_by} may do")
        return cls(*_read(settings.roles))

    def grant(self, name: str, groups: Iterable[str]) -> Grant | None:
        """Return the right of a user: its own line, else that of the strongest group, else the default."""
        if name in self.users:
            return self.users[name]
        found = [self.groups[group] for group in groups if group in self.groups]
        return max(found, key=lambda grant: _STRENGTH.index(grant.role), default=self.default)


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a user, and is not that of callers without a key."""
    fits = 0 < len(text) <= MAX_NAME_CHARS and text.isprintable() and text == text.strip()
    return fits and text.casefold() not in RESERVED_NAMES


def _read(path: Path) -> tuple[dict[str, Grant], dict[str, Grant], Grant | None]:
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise wrong_setting("roles", path, f"a file that can be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise wrong_setting("roles", path, f"TOML: {error}") from error  # names line and column
    if unknown := sorted(found.keys() - {"default", "users", "groups"}):
        raise wrong_setting("roles", f"{path}: {unknown[0]}", "default, [users] and [groups]")
    tables = []
    for name in ("users", "groups"):
        table = found.get(name, {})
        if not isinstance(table, dict):
            raise wrong_setting("roles", f"{path}: {name} = {table!r}", f"a table: [{name}]")
        tables.append({one: _grant(path, f"[{name}] {one}", given) for one, given in table.items()})
    default = found.get("default")
    return tables[0], tables[1], None if default is None else _grant(path, "default", default)


def _grant(path: Path, place: str, given: object) -> Grant:
    facts = {"role": given} if isinstance(given, str) else given
    if isinstance(facts, dict) and facts.get("role") in _STRENGTH and facts.keys() <= {"role", "project"}:
        project = facts.get("project")
        if project is None or (isinstance(project, str) and project):
            return Grant(facts["role"], project)
    expected = f'one of {", ".join(_STRENGTH)}, or {{ role = "operator", project = "llm" }}'
    raise wrong_setting("roles", f"{path}: {place} = {given!r}", expected)


def wrong_setting(name: str, given: object, expected: str) -> SettingsError:
    """Return the error about a setting of the sign-in."""
    return SettingsError(
        f"setting {name} is {str(given)!r}, expected {expected}", hint=f"set STABILITY_{name.upper()}", setting=name
    )
