"""Sign-in at an OpenID provider: authorization code flow with PKCE, state and nonce. Promises: docs/security.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stabilitybackend.hooks import hook


@hook
def checks() -> list[Callable[..., Any]]:
    from stabilityplugins.oidc import checkup

    return [checkup.sign_in]
