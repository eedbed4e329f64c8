"""Content of ``/gallery``: words and recorded curve of each pattern. The browser draws it."""

from __future__ import annotations

import importlib.resources
import json
from dataclasses import asdict
from functools import cache
from typing import Any

from stabilityfrontend.gallery.patterns import GROUPS, PATTERNS

__all__ = ["content", "curves"]


@cache
def curves() -> dict[str, Any]:
    """Return the recorded curves by id of their pattern: ``fault``, ``seed``, ``rows`` of lines, ``found``."""
    text = importlib.resources.files(__package__).joinpath("curves.json").read_text(encoding="utf-8")
    known: dict[str, Any] = json.loads(text)
    return known


def content() -> dict[str, Any]:
    """Return everything on the page: ``patterns`` and ``groups`` in their order, ``curves`` by pattern."""
    return {"patterns": [asdict(one) for one in PATTERNS], "groups": GROUPS, "curves": curves()}
