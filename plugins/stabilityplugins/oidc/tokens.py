"""Whether an ID token is one: signed by the provider, for this server, for this sign-in, and still good. Pure.

Signatures are joserfc's matter, the rules of OpenID Connect Core 1.0 (3.1.3.7) Authlib's. The parts that both leave to
their user are fixed here: the accepted algorithms, and this server as the audience.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import Key, KeySet, import_key
from joserfc.jws import JWSRegistry

from stabilityplugins.oidc.refusals import SignInRefused

__all__ = ["ALGORITHMS", "LEEWAY_S", "UnknownKey", "claims_of", "keys_of"]

#: Signatures by a private key, which the provider alone has. Neither ``none`` nor HS256, whatever the provider claims:
#: the client's own secret, or a public key taken for one, would sign.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
#: Clocks of provider and server may differ by so much, seconds.
LEEWAY_S = 30
#: Kinds of keys that have a public half.
_PUBLIC_KINDS = frozenset({"RSA", "EC", "OKP"})
#: Errors of joserfc and Authlib for a foreign text; the last ones are from values of a wrong type.
_BAD = (JoseError, ValueError, TypeError, AttributeError, KeyError, RecursionError)


class UnknownKey(Exception):
    """The token names an unknown key: the provider may have new ones."""


def keys_of(document: object) -> KeySet:
    """Return the keys of a JWKS document; those of kinds unknown here, and shared secrets, are left out.

    Raises:
        SignInRefused: none can be used.
    """
    listed = document.get("keys") if isinstance(document, dict) else None
    found: list[Key] = []
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and one.get("kty") in _PUBLIC_KINDS and one.get("use", "sig") == "sig":
            try:
                found.append(import_key(one))
            except _BAD:
                continue
    if not found:
        raise SignInRefused("provider_wrong", "jwks_uri: expected keys that sign, found none that can be used")
    return KeySet(found)


def claims_of(
    token: str, keys: KeySet, *, issuer: str, client_id: str, nonce: str, access_token: str | None, now: float
) -> Mapping[str, Any]:
    """Return the claims of an ID token that holds.

    Args:
        issuer, client_id, nonce: values that it has to hold.
        access_token: issued with it; its hash may be in the token.
        now: unix seconds.

    Raises:
        UnknownKey: it is signed by another key than these.
        SignInRefused: it does not hold, and why.
    """
    try:
        read = jwt.decode(token, keys, registry=JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False))
        claims = CodeIDToken(
            read.claims,
            read.header,
            {"iss": {"essential": True, "value": issuer}, "aud": {"essential": True, "value": client_id}},
            {"nonce": nonce, "client_id": client_id, "access_token": access_token},
        )
        claims.validate(now=int(now), leeway=LEEWAY_S)
    except InvalidKeyIdError as error:
        raise UnknownKey(str(error)) from error
    except _BAD as error:
        raise SignInRefused("token_bad", f"id_token: {error or type(error).__name__}") from error
    if not claims["sub"]:
        raise SignInRefused("token_bad", "id_token: the subject is empty")
    return dict(claims)
