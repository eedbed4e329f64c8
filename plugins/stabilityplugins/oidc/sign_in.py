"""The sign-in at the provider from the button to the person: for the routes of ``api.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis

from stabilitybackend.access.auth import Principal
from stabilitybackend.access.people.roles import MAX_NAME_CHARS, Roles, is_name
from stabilitybackend.access.sessions import SignedIn
from stabilitybackend.base.errors import SettingsError
from stabilitybackend.base.settings import Settings
from stabilityplugins.oidc.flows import Flow, Flows
from stabilityplugins.oidc.refusals import SignInRefused
from stabilityplugins.oidc.settings import OidcSettings

if TYPE_CHECKING:
    from stabilityplugins.oidc.provider import Provider

__all__ = ["OidcSignIn", "safe_page"]

#: Longest address of the page wanted before the sign-in, characters.
_MAX_PAGE_CHARS = 2000
#: Longest ID token that is kept for the sign-out, characters: it goes into an address.
_MAX_KEPT_TOKEN_CHARS = 4000


@dataclass(frozen=True)
class OidcSignIn:
    """Sign-in at one provider."""

    settings: OidcSettings
    provider: Provider
    flows: Flows
    roles: Roles

    @classmethod
    def of(cls, settings: Settings, redis: Redis) -> OidcSignIn:
        """Return the sign-in at the provider ``oidc_issuer``, which is set. Nothing is asked yet.

        Raises:
            SettingsError: a setting is missing or wrong, or the packages for it are not installed.
        """
        wanted = OidcSettings.of(settings)
        assert wanted is not None
        roles = Roles.of(settings, "oidc_issuer")
        try:
            from stabilityplugins.oidc.provider import Provider  # needs the extra, and 50 ms
        except ImportError as error:
            raise SettingsError(
                f"setting oidc_issuer needs the package {error.name}, which is not installed",
                hint="pip install 'stabilityboard[oidc]'",
                setting="oidc_issuer",
            ) from error
        return cls(wanted, Provider(wanted), Flows(redis), roles)

    def may(self, person: SignedIn) -> Principal | None:
        """Return the rights of a person who signed in before, None: none any more."""
        grant = self.roles.grant(person.name, person.groups) if person.issuer == self.settings.issuer else None
        return None if grant is None else grant.principal(person.name, session=True)

    async def sign_out_url(self, person: SignedIn) -> str | None:
        """Return the provider's page that ends the sign-in there, None where it has none or is away."""
        return await self.provider.sign_out_url(person.id_token) if person.issuer == self.settings.issuer else None

    async def begin(self, then: str, *, other: bool) -> tuple[str, str]:
        """Return the provider's page for a new sign-in, and the secret for the browser's cookie.

        Args:
            then: the page wanted. other: a change of the person signed in there.

        Raises:
            SignInRefused: the provider is away.
            Unavailable: Redis is.
        """
        page = safe_page(then)
        try:
            await self.provider.ready()  # before the flow: of one that is away nothing is begun
            state, browser, flow = await self.flows.begin(page)
            return await self.provider.sign_in_url(state, flow, other=other), browser
        except SignInRefused as refused:
            refused.then = page
            raise

    async def finish(self, answer: Mapping[str, str], browser: str) -> tuple[SignedIn, str]:
        """Return the person that the provider confirmed, and the page wanted.

        Args:
            answer: the query that the provider sent them back with. browser: the secret of their cookie.

        Raises:
            SignInRefused: the sign-in failed, with the reason.
            Unavailable: Redis is away.
        """
        flow = await self.flows.take(answer.get("state", ""), browser)
        try:
            return await self._person(answer, flow), flow.then
        except SignInRefused as refused:
            refused.then = flow.then
            raise

    async def _person(self, answer: Mapping[str, str], flow: Flow) -> SignedIn:
        await self.provider.check_issuer(answer.get("iss"))
        if "error" in answer:
            code = answer["error"] if answer["error"].isidentifier() else "none that can be read"
            cancelled = code == "access_denied"
            raise SignInRefused("cancelled" if cancelled else "provider_refused", f"error {code[:100]}")
        given = await self.provider.tokens(answer.get("code", ""), flow)
        claims = await self.provider.claims(given, flow.nonce)
        subject = str(claims["sub"])
        wanted = {self.settings.user_claim, self.settings.groups_claim}
        if not wanted <= claims.keys():  # many providers keep tokens short
            claims = {**await self.provider.person(given, subject), **claims}
        name = self._name(claims)
        listed = _texts(claims.get(self.settings.groups_claim))
        groups = tuple(dict.fromkeys(one for one in listed if one in self.roles.groups))
        if self.roles.grant(name, groups) is None:
            raise SignInRefused("no_role", f"has no role; of {len(listed)} groups none is in the file of roles", name)
        kept = given.id_token if len(given.id_token) <= _MAX_KEPT_TOKEN_CHARS else ""
        return SignedIn(self.settings.issuer, subject, name, groups, kept)

    def _name(self, claims: Mapping[str, Any]) -> str:
        claim = self.settings.user_claim
        name = claims.get(claim)
        if not isinstance(name, str) or not is_name(name):
            what = "nothing" if name is None else f"{type(name).__name__} {str(name)[:50]!r}"
            raise SignInRefused(
                "no_name", f"claim {claim!r} is {what}, expected 1 to {MAX_NAME_CHARS} characters (oidc_user_claim)"
            )
        # As Kubernetes has it: a user may write any address into an account that is not checked.
        if claim == "email" and claims.get("email_verified", True) not in (True, "true"):
            raise SignInRefused("no_name", f"the provider has not verified the address {name!r}")
        return name


def safe_page(then: str) -> str:
    """Return the address of a page of this server if ``then`` is one, else that of the first page.

    Browsers take ``//host``, ``/\\host`` and either with a tab or a line break in it for another host.
    """
    inside = then.startswith("/") and not then.startswith("//") and "\\" not in then
    fine = inside and then.isascii() and then.isprintable() and len(then) <= _MAX_PAGE_CHARS
    return then if fine and not then.startswith(("/api/", "/login")) else "/"


def _texts(given: object) -> list[str]:
    """Return groups as a claim has them: a list, or one alone."""
    listed = given if isinstance(given, list) else [given]
    return [one for one in listed if isinstance(one, str)]
