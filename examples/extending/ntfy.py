"""An alert channel: pushes to a phone through ntfy. ``STABILITY_NTFY_URL`` is the address of a topic."""

from __future__ import annotations

from stabilityalerting import HttpSink, Notice, Outgoing, Severity, Variables
from stabilitybackend.hooks import hook

_PRIORITY = {"critical": "5", "warning": "3", "info": "2"}


class NtfySink(HttpSink):
    """Posts one line for each change. Source: https://docs.ntfy.sh/publish/"""

    name = "ntfy"
    idempotent = False  # the same message twice is two on the phone: one that may have arrived is not sent again

    @classmethod
    def from_variables(cls, variables: Variables) -> NtfySink | None:
        severity = variables.severity("STABILITY_NTFY_MIN_SEVERITY", "warning")
        url = variables.url("STABILITY_NTFY_URL")
        return None if url is None else cls(url, severity)

    def __init__(self, url: str, min_severity: Severity) -> None:
        super().__init__(min_severity, secrets=[url])
        self._url = url

    def outgoing(self, notice: Notice) -> Outgoing:
        headers = {
            "Content-Type": "text/plain",
            "Priority": _PRIORITY[notice.alert.severity],
            "Tags": notice.change,
            "Click": notice.url,
        }
        return Outgoing(self._url, notice.alert.line.encode(), headers)


@hook
def channels() -> list[type[HttpSink]]:
    return [NtfySink]
