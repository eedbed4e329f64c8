"""Makes one part of adjacent ones: fewer files to open, the same answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.contents import NO_CUTS, Cuts
from stabilitybackend.storage.archive.layout import Files
from stabilitybackend.storage.archive.location import Location
from stabilitybackend.storage.archive.part import Part, PartReader
from stabilitybackend.storage.archive.series import Rows, SeriesKey, join_rows
from stabilitybackend.storage.archive.writing import write_from

__all__ = ["compact"]

#: Bytes of decoded chunks that a merge keeps: neighbours in the file are asked for one after the other.
CACHE_BYTES = 32 * 2**20


def compact(
    location: Location, run_id: str, readers: Sequence[PartReader], stem: str, created: float, cuts: Cuts = NO_CUTS
) -> Part:
    """Write one part with everything that adjacent parts hold, and return it. The old files stay: they are listed.

    A step that is in several parts has the rows of all, oldest first; a series' aggregates are made again from its
    rows, and of the states only the last is kept. One series at a time is in memory.

    Args:
        readers: oldest first, each beginning where the one before it ends.
        stem: of the new part. created: unix seconds. cuts: as in ``write_part``.

    Raises:
        ValueError: the parts are not adjacent.
        ArchiveError: a file could not be read or written.
    """
    if not readers or any(a.part.to_id != b.part.from_id for a, b in pairwise(readers)):
        ranges = ", ".join(f"({r.part.from_id}, {r.part.to_id}]" for r in readers)
        raise ValueError(f"can't merge the parts {ranges or '(none)'}: expected each to begin where the last one ends")
    parts = [reader.part for reader in readers]
    files = [Files.of(run_id, part.stem) for part in parts]
    names = [name for each in files for name in (each.series, each.points, each.frames)]
    with location.nearby([*names, files[-1].state]) as near:
        # Not the shared cache: a merge reads everything once and would turn out what is in use.
        cache = ByteCache(CACHE_BYTES)
        sources = [PartReader(near, run_id, part, cache) for part in parts]
        keys = list(dict.fromkeys(chain.from_iterable(source.keys() for source in sources)))

        def rows_of(key: SeriesKey) -> Rows:
            return join_rows([source.rows(key) for source in sources])

        def frames() -> Iterator[tuple[str, bytes]]:
            for source in sources:
                yield from source.frames()

        return write_from(
            location, run_id, stem, from_id=parts[0].from_id, to_id=parts[-1].to_id, keys=keys, rows_of=rows_of,
            frames=frames(), state=sources[-1].state(), created=created, cuts=cuts,
        )  # fmt: skip
