"""Several server processes: roles, relay between them, membership."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stabilitybackend.hooks import hook


@hook
def checks() -> list[Callable[..., Any]]:
    from stabilityplugins.scale import checkup

    return [checkup.processes]
