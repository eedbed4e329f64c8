"""Sign-in at a provider, as a stage of the server."""

from __future__ import annotations

from stabilitybackend.access.audit import AuditLog
from stabilitybackend.access.auth import Principal
from stabilitybackend.access.sessions import SignedIn
from stabilitybackend.schema.server import OidcWay
from stabilitybackend.server.stages import Connections, Options, SignIn
from stabilityplugins.oidc.refusals import Refusals, SignInRefused, sentence
from stabilityplugins.oidc.sign_in import OidcSignIn

__all__ = ["ProviderSignIn"]


class ProviderSignIn(SignIn):
    """Sign-in at an OpenID provider, besides keys."""

    def __init__(self, options: Options, connections: Connections) -> None:
        super().__init__(options, connections)
        self.oidc = OidcSignIn.of(options.settings, connections.ingest)
        self.refusals = Refusals(AuditLog(connections.redis))

    def principal(self, person: SignedIn) -> Principal | None:
        """Return the rights of a person who signed in before, None for none any more."""
        return self.oidc.may(person)

    async def provider(self, refused: str) -> OidcWay:
        """Return the provider, whether it answers, and the sentence for a refused sign-in."""
        its = self.oidc.settings
        trouble = ""
        try:
            await self.oidc.provider.ready()
        except SignInRefused as away:
            trouble = sentence(away.code, its.name, its.public_url)
        start = f"{its.public_url}/api/v1/oidc/start"
        return OidcWay(its.name, start, trouble, sentence(refused, its.name, its.public_url))

    async def sign_out_url(self, person: SignedIn) -> str | None:
        """Return the provider's page that ends a sign-in there, None where it has none or is away."""
        return await self.oidc.sign_out_url(person)

    async def stop(self) -> None:
        """Close the connection to the provider."""
        await self.oidc.provider.close()
