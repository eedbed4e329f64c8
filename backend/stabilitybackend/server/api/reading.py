"""Dependencies of the routes that read much: threads, and answers shared by equal requests."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Header

from stabilitybackend.base.shared_answers import SharedAnswers
from stabilitybackend.server.reading import ReadingThreads
from stabilitybackend.server.stage import part
from stabilitybackend.server.stages import Reading

__all__ = ["MaxAge", "ReadingPart", "Shared", "Threads"]

#: Largest age of a shared answer about a live run, seconds, for a request with max-age.
SHARED_FOR_S = 1.0


ReadingPart = Annotated[Reading, part(Reading)]


async def _threads(reading: ReadingPart) -> ReadingThreads:
    return reading.threads


#: The application's threads for reading.
Threads = Annotated[ReadingThreads, Depends(_threads)]


async def _shared(reading: ReadingPart) -> SharedAnswers:
    return reading.answers


async def _max_age(
    cache_control: Annotated[
        str | None, Header(description=f"max-age=N: takes an answer that is N s old, {SHARED_FOR_S:.0f} at most")
    ] = None,
) -> float:
    found = re.search(r"\bmax-age=(\d{1,9})\b", cache_control or "")
    return min(float(found[1]), SHARED_FOR_S) if found else 0.0


#: How old an answer the caller takes, seconds.
MaxAge = Annotated[float, Depends(_max_age)]
#: The application's answers that others may get, too.
Shared = Annotated[SharedAnswers, Depends(_shared)]
