"""Settings of the OpenID provider, before any question to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from stabilitybackend.access.people.roles import wrong_setting
from stabilitybackend.base.settings import Settings, is_loopback

__all__ = ["CALLBACK", "OidcSettings", "is_safe_address"]

#: Address to which the provider returns browsers. It has to be registered there, under the public URL.
CALLBACK = "/api/v1/oidc/callback"
#: Longest secret of a client, characters.
_MAX_SECRET_CHARS = 1000


@dataclass(frozen=True)
class OidcSettings:
    """A provider, and how this server is registered there.

    Args:
        issuer: its address, as in its tokens. public_url: of this server, without a slash at its end.
        client_id: of this server there. client_secret: None for a public client.
        name: for display. scopes: asked for.
        user_claim, groups_claim: names of the claims of a person and of their groups.
    """

    issuer: str
    public_url: str
    client_id: str
    client_secret: str | None = field(repr=False)
    name: str
    scopes: str
    user_claim: str
    groups_claim: str

    @classmethod
    def of(cls, settings: Settings) -> OidcSettings | None:
        """Return the provider in the settings, None without one.

        Raises:
            SettingsError: something is missing, or is no address of a provider.
        """
        issuer = settings.oidc_issuer
        if issuer is None:
            return None
        if not is_safe_address(issuer) or "?" in issuer or "#" in issuer:
            raise wrong_setting(
                "oidc_issuer", issuer, "an https:// address without ? or # (http:// on loopback alone), as it is in "
                "the provider's .well-known/openid-configuration",
            )  # fmt: skip
        if settings.pages_url is None:
            raise wrong_setting("public_url", "nothing", "the address that the provider sends people back to")
        if settings.oidc_client_id is None:
            raise wrong_setting("oidc_client_id", "nothing", "the id of the client that is registered there")
        if "openid" not in settings.oidc_scopes.split():
            raise wrong_setting("oidc_scopes", settings.oidc_scopes, "openid and others, separated by blanks")
        return cls(
            issuer, settings.pages_url, settings.oidc_client_id, _secret(settings),
            settings.oidc_name or urlsplit(issuer).hostname or issuer, " ".join(settings.oidc_scopes.split()),
            settings.oidc_user_claim, settings.oidc_groups_claim,
        )  # fmt: skip

    @property
    def redirect_url(self) -> str:
        """Address to which the provider returns browsers."""
        return self.public_url + CALLBACK

    @property
    def signed_out_url(self) -> str:
        """Where it sends them after they signed out."""
        return self.public_url + "/login"


def is_safe_address(url: str) -> bool:
    """Return whether data sent to an address can't be read on the way: https, or this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        parts.port  # noqa: B018 - asking for it reads it
    except ValueError:
        return False
    if not host or parts.username is not None or not url.isprintable() or " " in url:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


def _secret(settings: Settings) -> str | None:
    """Return the client's secret. It is in no message, whatever is wrong with it."""
    file: Path | None = settings.oidc_client_secret_file
    text = settings.oidc_client_secret
    if file is not None:
        if text is not None:
            raise wrong_setting("oidc_client_secret", "set", "nothing where oidc_client_secret_file is set")
        try:
            text = file.read_text("utf-8").strip()
        except OSError as error:
            raise wrong_setting("oidc_client_secret_file", file, f"a file to read ({error.strerror})") from error
        except UnicodeDecodeError:
            raise wrong_setting("oidc_client_secret_file", file, "a text") from None
    if text is None:
        return None
    if not 0 < len(text) <= _MAX_SECRET_CHARS or not text.isprintable():
        name = "oidc_client_secret" if file is None else "oidc_client_secret_file"
        raise wrong_setting(name, f"{len(text)} characters", f"1 to {_MAX_SECRET_CHARS} that can be printed")
    return text
