"""Sign-in at an OpenID provider: authorization code flow with PKCE, state and nonce. Promises: docs/security.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from stabilitybackend.hooks import hook

if TYPE_CHECKING:
    from fastapi import APIRouter

    from stabilitybackend.server.stage import Stage
    from stabilitybackend.server.stages import Options


@hook
def checks() -> list[Callable[..., Any]]:
    from stabilityplugins.oidc import checkup

    return [checkup.sign_in]


@hook
def stages(options: Options) -> Iterable[type[Stage]]:
    if options.settings.oidc_issuer is None:
        return ()
    from stabilityplugins.oidc.provider_stage import ProviderSignIn

    return (ProviderSignIn,)


@hook
def routes() -> list[APIRouter]:
    from stabilityplugins.oidc.api import router

    return [router]
