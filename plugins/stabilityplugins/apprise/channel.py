"""Short texts through apprise: mail, Teams, Discord, ntfy, and some hundred other services, by their addresses.

The library is needed only where an address is set: ``pip install 'stabilityboard[apprise]'``.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stabilityalerting.alert import Notice, Severity
from stabilityalerting.errors import AlertingSettingsError, SendError
from stabilityalerting.sink import BeforeWrite, Sink
from stabilityalerting.variables import Variables

#: Longest text, characters, as of SMS gateways and push services.
MAX_TEXT_CHARS = 1_000
#: Longest title, characters.
MAX_TITLE_CHARS = 200
#: Longest time for one address, seconds. Apprise itself waits 4 s to connect and 4 s for an answer; mail takes longer.
TIMEOUT_S = 30.0
#: Concurrent addresses. A thread that hangs beyond the time-out blocks one until it ends.
MAX_THREADS = 8
#: Notices accepted by some of the addresses, remembered so that those get none twice.
MAX_HALF_SENT = 1_000

_VARIABLE = "STABILITY_APPRISE_URLS"
_INSTALL = "pip install 'stabilityboard[apprise]'"
_TYPES = {"info": "info", "warning": "warning", "critical": "failure"}
#: Between two addresses; an address may itself have a comma.
_BETWEEN = re.compile(r"[\s,]+(?=[a-zA-Z][a-zA-Z0-9+.-]*://)")

__all__ = ["AppriseSink", "text_of"]


class AppriseSink(Sink):
    """Sends each notice to each address, in threads, since apprise blocks.

    A retry leaves out the addresses that accepted a notice. A message whose fate a crash left open is not sent again.

    Args:
        urls: of apprise (https://github.com/caronc/apprise/wiki); they hold passwords and tokens.
        timeout_s: longest time for one address, seconds.

    Raises:
        AlertingSettingsError: apprise is not installed, or an address is unknown to it.
    """

    name = "apprise"
    idempotent = False

    def __init__(
        self,
        urls: Sequence[str],
        min_severity: Severity = "info",
        *,
        variable: str = _VARIABLE,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.min_severity = min_severity
        self.secrets = tuple(urls)
        self._timeout_s = timeout_s
        self._addresses = _addresses(urls, variable)
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="apprise")
        #: Idempotency key -> indices of the addresses that accepted it.
        self._accepted: OrderedDict[str, set[int]] = OrderedDict()

    @classmethod
    def from_variables(cls, variables: Variables) -> AppriseSink | None:
        severity = variables.severity("STABILITY_APPRISE_MIN_SEVERITY")
        text = variables.text(_VARIABLE)
        if text is None:
            return None
        named = variables.named(_VARIABLE)
        urls = _split(text) if "://" in text else _of_file(text, named)
        return cls(urls, severity, variable=named)

    async def send(self, notice: Notice, before_write: BeforeWrite) -> None:
        accepted = self._accepted.setdefault(notice.idempotency_key, set())
        waiting = [at for at in range(len(self._addresses)) if at not in accepted]
        title, body = text_of(notice)
        over = "success" if notice.alert.is_cured else "info"
        kind = over if notice.change == "resolved" else _TYPES[notice.severity]
        await before_write()
        done = await asyncio.gather(*(self._to(at, title, body, kind) for at in waiting))
        accepted.update(at for at, problem in zip(waiting, done, strict=True) if not problem)
        problems = [problem for problem in done if problem]
        if not problems:
            del self._accepted[notice.idempotency_key]
            return
        while len(self._accepted) > MAX_HALF_SENT:
            self._accepted.popitem(last=False)
        count = f"{len(problems)} of {len(self._addresses)} addresses"
        raise SendError(f"{self.name}: {count} did not take it: {problems[0]}", recoverable=True)

    async def aclose(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _to(self, at: int, title: str, body: str, kind: str) -> str:
        """Send to one address; return the problem, "" for none, without apprise's text, which may hold a secret."""
        service, address = self._addresses[at]
        work = asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: bool(address.notify(title=title, body=body, notify_type=kind, body_format="text"))
        )
        try:
            taken = await asyncio.wait_for(work, self._timeout_s)
        except TimeoutError:
            return f"no answer from address {at + 1} ({service}) in {self._timeout_s:g} s"
        except Exception as error:  # a plug-in of apprise may raise anything
            return f"address {at + 1} ({service}) failed ({type(error).__name__})"
        return "" if taken else f"address {at + 1} ({service}) refused it or is away"


def text_of(notice: Notice) -> tuple[str, str]:
    """Return title and text of a notice, plain, at most MAX_TEXT_CHARS; the link is always whole."""
    alert = notice.alert
    word = (alert.status_word or "resolved") if notice.change == "resolved" else notice.severity
    title = f"[{word}] {alert.headline} (run {alert.run_id})"[:MAX_TITLE_CHARS]
    parts = [notice.why, alert.text]
    if alert.advice and alert.is_open and notice.change != "handed_over":  # there it is part of the text
        parts.append(f"What to do: {alert.advice}")
    room = MAX_TEXT_CHARS - len(notice.url) - 2
    text = "\n\n".join(part for part in parts if part)
    if len(text) > room:
        text = text[: max(0, room - 4)] + " ..."
    return title, f"{text}\n\n{notice.url}"


def _split(text: str) -> list[str]:
    return [one.strip(" ,") for one in _BETWEEN.split(text.strip()) if one.strip(" ,")]


def _of_file(path: str, variable: str) -> list[str]:
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        # Without the path: a wrong value may be an address.
        raise AlertingSettingsError(
            f"{variable} is no address and no file that can be read ({type(error).__name__}), expected apprise's "
            "addresses, or the path of a file with one in each line"
        ) from None
    urls = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not urls:
        raise AlertingSettingsError(f"the file of {variable} has no address, expected one in each line")
    return urls


def _addresses(urls: Sequence[str], variable: str) -> list[tuple[str, Any]]:
    """Return the name of the service of each address, and an ``Apprise`` that sends there."""
    # It logs wrong addresses with their passwords; so does its HTTP library.
    for name, level in (("apprise", logging.CRITICAL + 1), ("urllib3", logging.ERROR)):
        logging.getLogger(name).setLevel(level)
    try:
        import apprise
    except ImportError:
        raise AlertingSettingsError(f"{variable} is set and apprise is not installed: {_INSTALL}") from None
    made = []
    for at, url in enumerate(urls):
        asset = apprise.AppriseAsset(
            app_id="Stabilityboard", app_desc="Stabilityboard", storage_mode=apprise.PersistentStoreMode.MEMORY
        )
        one = apprise.Apprise(asset=asset)
        if not one.add(url):
            raise AlertingSettingsError(
                f"{variable}: address {at + 1} of {len(urls)} is none that apprise knows, or is not complete: "
                "https://github.com/caronc/apprise/wiki"
            )
        made.append((str(one[0].service_name or "?"), one))
    return made
