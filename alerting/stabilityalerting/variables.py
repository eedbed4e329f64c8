"""Settings from the environment. Errors name the variable, never its value, which may be a secret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from .alert import SEVERITIES, Severity
from .errors import AlertingSettingsError

__all__ = ["EVERY_S", "Variables"]

#: Seconds between two beats of the heart and two rounds to Alertmanager by default, and the bounds of
#: ``STABILITY_HEARTBEAT_S``.
EVERY_S = 30.0
SHORTEST_S = 1.0
LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class Variables:
    """The environment of the process; an empty variable counts as not set.

    Args:
        receiver: name of a further receiver of a channel: its variables end in ``_NAME``.
    """

    environ: Mapping[str, str]
    receiver: str = ""

    def named(self, name: str) -> str:
        """Return the variable of this receiver for one of its channel."""
        return f"{name}_{self.receiver.upper()}" if self.receiver else name

    def text(self, name: str) -> str | None:
        """Return a variable's text, None where it is not set."""
        return self.environ.get(self.named(name), "").strip() or None

    def url(self, name: str) -> str | None:
        """Return an address, None where it is not set.

        Raises:
            AlertingSettingsError: no address.
        """
        value = self.text(name)
        if value is not None and not _is_address(value):
            raise AlertingSettingsError(f"{self.named(name)} is not an address, expected https://host/path")
        return value

    def urls(self, name: str) -> list[str]:
        """Return addresses separated by commas, none where it is not set.

        Raises:
            AlertingSettingsError: a part is no address, or holds a user name or password.
        """
        found = [part.strip().rstrip("/") for part in (self.text(name) or "").split(",") if part.strip()]
        for value in found:
            if not _is_address(value):
                raise AlertingSettingsError(f"{name} is not a list of addresses, expected https://host:port,...")
            if "@" in urlsplit(value).netloc:
                raise AlertingSettingsError(f"{name} has a user name or password in it: set those by variables")
        return found

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """Return one of the allowed values, the first where it is not set.

        Raises:
            AlertingSettingsError: another value.
        """
        value = self.text(name) or allowed[0]
        if value not in allowed:
            raise AlertingSettingsError(f"{self.named(name)} is {value!r}, expected one of {', '.join(allowed)}")
        return value

    def every_s(self) -> float:
        """Return the seconds between two signs of life, the same for all watchers of this server.

        Raises:
            AlertingSettingsError: not 1 to 60.
        """
        value = self.environ.get("STABILITY_HEARTBEAT_S", "").strip() or str(EVERY_S)
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not SHORTEST_S <= seconds <= LONGEST_S:
            raise AlertingSettingsError(
                f"STABILITY_HEARTBEAT_S is {value!r:.40}, expected seconds from {SHORTEST_S:g} to {LONGEST_S:g}"
            )
        return seconds

    def need_nothing(self, missing: str, names: Sequence[str]) -> None:
        """Check that no variable is set that needs the missing one.

        Raises:
            AlertingSettingsError: one is set.
        """
        lonely = next((name for name in names if self.text(name) is not None), None)
        if lonely is not None:
            raise AlertingSettingsError(f"{self.named(lonely)} is set without {self.named(missing)}: set both")

    def severity(self, name: str, default: Severity = "info") -> Severity:
        """Return the mildest severity for a receiver.

        Raises:
            AlertingSettingsError: no severity.
        """
        value = self.text(name) or default
        for severity in SEVERITIES:
            if value == severity:
                return severity
        raise AlertingSettingsError(f"{self.named(name)} is {value!r}, expected one of {', '.join(SEVERITIES)}")


def _is_address(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
