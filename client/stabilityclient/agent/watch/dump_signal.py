"""Whether a rank would answer the signal that makes faulthandler write its stacks."""

from __future__ import annotations

import os
import signal
import time

from stabilityclient.agent.sources import Source
from stabilityclient.agent.watch.exits import open_process, send_signal, signal_name
from stabilityclient.agent.watch.probes import signal_is_caught
from stabilityclient.rank_state.slot import STATE_RUNNING

__all__ = ["SignalCheck", "dump_signal_trouble"]

#: Seconds for which a finding about a rank is believed.
CHECK_S = 2.0


def dump_signal_trouble(source: Source, *, send: bool = False) -> str:
    """Return why a rank can't be made to write its stacks, empty when it can.

    Args:
        source: a rank that was just observed.
        send: send the signal, where that can do no harm; else nothing that the process would notice.
    """
    slot = source.slot
    if slot is None or source.unreadable:
        return source.unreadable
    if not 0 < slot.dump_signal < signal.NSIG:
        return f"no dump signal is registered in the job: {source.no_dumps or 'training took it'}"
    if source.elsewhere:
        return "it runs in another container (PID namespace): it can't be signalled from here"
    if not source.ticks:
        return "its start is not known, so it may be another process by now"
    if slot.state != STATE_RUNNING:
        return "the process is leaving: its handlers may be gone"
    own = None
    try:
        fd = source.pidfd
        if fd is None:
            fd = own = open_process(source.info.pid, source.ticks)
        return "the process has ended" if fd is None else _signalled(fd, source.info.pid, slot.dump_signal, send)
    except OSError as error:
        return f"the agent may not signal the process: {(error.strerror or str(error)).lower()}"
    finally:
        if own is not None:
            os.close(own)


def _signalled(fd: int, pid: int, number: int, send: bool) -> str:
    # At the last moment: without its handler this signal would end the process.
    caught = signal_is_caught(pid, number)
    if caught or not send:
        send_signal(fd, number if send else 0)
    if caught:
        return ""
    gone = "has no handler for it any more" if caught is False else "does not let us see its handlers"
    return f"the process {gone} ({signal_name(number)})"


class SignalCheck:
    """Remembers for some seconds which ranks can't be made to write their stacks, and why."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, str]] = {}

    def trouble(self, source: Source) -> str:
        """Return why this rank can't, empty when it can."""
        now = time.monotonic()
        at, text = self._found.get(source.info.source, (-CHECK_S, ""))
        if now - at >= CHECK_S:
            text = dump_signal_trouble(source)
            self._found = {name: entry for name, entry in self._found.items() if now - entry[0] < 2 * CHECK_S}
            self._found[source.info.source] = (now, text)
        return text
