"""Makes lines that people can read of the bytes that a rank printed. They are cleaned on their way out."""

from __future__ import annotations

import re

__all__ = ["MAX_LINE_CHARS", "Lines", "readable"]

#: Longest line, characters; what is beyond it is cut.
MAX_LINE_CHARS = 2_000
#: Bytes kept of a line that has no end yet; a progress bar that is drawn again and again is cut to its newest form.
MAX_OPEN_BYTES = 16 * 1024
#: Share of bytes that are no text from which on a line is called binary.
BINARY_SHARE = 0.3
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u2028\u2029]")


class Lines:
    """Cuts the bytes of one file into lines, as they come; ``readable`` makes texts of those that are wanted."""

    def __init__(self) -> None:
        self._open = b""
        self._cut = False

    def jump(self) -> None:
        """What is fed next begins anywhere in a line: that one is left out, as its begin may have named a secret."""
        self._open, self._cut = b"", True

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are whole now."""
        if self._cut:
            _, *rest = re.split(rb"[\r\n]", data, maxsplit=1)
            self._cut, data = not rest, b"".join(rest)
        *whole, self._open = (self._open + data).split(b"\n")
        if len(self._open) > MAX_OPEN_BYTES:
            self._open = self._open.rpartition(b"\r")[2][-MAX_OPEN_BYTES:]
        return whole

    def rest(self) -> list[bytes]:
        """Return what stands at the end without an end of line, of a process that is over."""
        line, self._open = self._open, b""
        return [line] if line else []


def readable(line: bytes) -> str:
    """Return a line as people saw it: without colours, in its last form, cut."""
    # A progress bar goes back to the start of its line: only its last form is of interest.
    line = line.rstrip(b"\r").rpartition(b"\r")[2][: 4 * MAX_LINE_CHARS]
    text = line.decode("utf-8", "replace")
    plain = _CONTROL.sub("", _ANSI.sub("", text)).rstrip()
    bad = plain.count("\ufffd") + len(_CONTROL.findall(_ANSI.sub("", text)))
    if len(text) > 8 and bad > BINARY_SHARE * len(text):
        return f"({len(line)} bytes that are no text)"
    return plain if len(plain) <= MAX_LINE_CHARS else f"{plain[:MAX_LINE_CHARS]} …"
