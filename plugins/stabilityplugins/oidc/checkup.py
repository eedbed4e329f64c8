"""A check of ``stabilityboard doctor``: the provider of sign-ins answers."""

from __future__ import annotations

import asyncio

from stabilitybackend.base.settings import Settings
from stabilitybackend.hooks import CheckResult
from stabilitybackend.storage.redis_link import make_redis
from stabilityplugins.oidc.refusals import SignInRefused
from stabilityplugins.oidc.sign_in import OidcSignIn


def sign_in(settings: Settings) -> CheckResult | None:
    if settings.oidc_issuer is None:
        return None

    async def asked() -> str:
        way = OidcSignIn.of(settings, make_redis("redis://127.0.0.1"))  # which is asked nothing
        try:
            await way.provider.ready()
        finally:
            await way.provider.close()
        return f"{way.settings.name} answers; it has to send people back to {way.settings.redirect_url}"

    try:
        return CheckResult("sign in", "ok", asyncio.run(asked()))
    except SignInRefused as refused:
        advice = "people can't sign in until it answers, keys work all the same; check STABILITY_OIDC_ISSUER"
        return CheckResult("sign in", "note", refused.detail, advice)
