"""Several server processes: roles, relay between them, membership."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from stabilitybackend.hooks import hook

if TYPE_CHECKING:
    from stabilitybackend.server.stage import Stage
    from stabilitybackend.server.stages import Options


@hook
def checks() -> list[Callable[..., Any]]:
    from stabilityplugins.scale import checkup

    return [checkup.processes]


@hook
def stages(options: Options) -> Iterable[type[Stage]]:
    if not options.settings.role:
        return ()
    from stabilityplugins.scale.shared_stages import SharedMembership, SharedWork

    return (SharedMembership, SharedWork)
