"""Reads what an environment sets up. What is wrong names the variable, never its value: it may be a secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from .alert import SEVERITIES, Severity
from .errors import AlertingSettingsError

__all__ = ["Variables"]


@dataclass(frozen=True, slots=True)
class Variables:
    """The environment of the process; an empty variable counts as not set.

    Args:
        receiver: name of a further receiver of a channel: its variables end in ``_NAME``.
    """

    environ: Mapping[str, str]
    receiver: str = ""

    def named(self, name: str) -> str:
        """Return the variable that a channel's own variable is here."""
        return f"{name}_{self.receiver.upper()}" if self.receiver else name

    def text(self, name: str) -> str | None:
        """Return a variable's text, None where it is not set."""
        return self.environ.get(self.named(name), "").strip() or None

    def url(self, name: str) -> str | None:
        """Return an address, None where it is not set.

        Raises:
            AlertingSettingsError: it is none.
        """
        value = self.text(name)
        parts = urlsplit(value or "")
        if value is not None and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise AlertingSettingsError(f"{self.named(name)} is not an address, expected https://host/path")
        return value

    def severity(self, name: str, default: Severity = "info") -> Severity:
        """Return the mildest severity that a receiver is sent.

        Raises:
            AlertingSettingsError: it is none.
        """
        value = self.text(name) or default
        for severity in SEVERITIES:
            if value == severity:
                return severity
        raise AlertingSettingsError(f"{self.named(name)} is {value!r}, expected one of {', '.join(SEVERITIES)}")
