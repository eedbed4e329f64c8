"""An importer: the text that a script of nanoGPT prints, ``iter 100: loss 2.3145, time 12.30ms, mfu 38.02%``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from stabilitybackend.hooks import hook
from stabilityplugins.importers.base import Importer
from stabilityplugins.importers.batches import Batch, Grouper, Who
from stabilityplugins.importers.problems import Reading

_LINE = re.compile(r"iter (\d+): loss (\S+), time (\S+)ms")


class TextLogImporter(Importer):
    """One run a file; a line that is no row of it is passed over, one whose numbers can't be read is reported."""

    name: ClassVar[str] = "nanogpt"
    label: ClassVar[str] = "nanoGPT log"
    known: ClassVar[str] = "text logs of nanoGPT (*.log)"
    suffixes: ClassVar[tuple[str, ...]] = (".log",)

    def takes(self, path: Path, head: bytes) -> bool:
        return _LINE.search(head.decode("utf-8", "replace")) is not None

    def read(
        self, path: Path, number: int, reading: Reading, *, rank: int = 0, prefix: str = "", step_key: str | None = None
    ) -> Iterator[Batch]:
        groups = Grouper(reading, timed=False)
        names = (f"{prefix}loss", f"{prefix}step_time_s")
        time = path.stat().st_mtime
        for item, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            found = _LINE.match(line)
            if found is None:
                continue
            try:
                loss, seconds = float(found[2]), float(found[3]) / 1000
            except ValueError as error:
                reading.problem(path, f"line {item}", str(error))
                continue
            time += seconds
            yield from groups.add(Who(number, rank), item, names, int(found[1]), time, [loss, seconds])
        reading.bytes_read += path.stat().st_size


@hook
def importers() -> list[type[Importer]]:
    return [TextLogImporter]
