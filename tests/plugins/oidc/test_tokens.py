"""Which ID tokens hold: only those that the provider signed, for this server and this sign-in, and in their time."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey
from joserfc.jws import JWSRegistry

from stabilityplugins.oidc.refusals import SignInRefused
from stabilityplugins.oidc.tokens import LEEWAY_S, UnknownKey, claims_of, keys_of
from support.oidc.fake import new_key

NOW = 1_700_000_000.0
KEY, OTHER = new_key("first"), new_key("first")
PUBLIC = {"keys": [KEY.as_dict(private=False)]}
GOOD = {
    "iss": "https://id.example", "aud": "board", "sub": "1", "iat": NOW, "exp": NOW + 60, "nonce": "n"
}  # fmt: skip


def read(token: str, keys: KeySet | None = None, **more: Any) -> Any:
    wanted = {"issuer": "https://id.example", "client_id": "board", "nonce": "n", "access_token": None, **more}
    return claims_of(token, keys or keys_of(PUBLIC), now=NOW, **wanted)


def signed(claims: dict[str, Any], key: Any = KEY, **header: Any) -> str:
    head = {"alg": "RS256", "kid": "first", **header}
    return jwt.encode(head, claims, key, registry=JWSRegistry(algorithms=[head["alg"]]))


def with_confused_key(claims: dict[str, Any]) -> str:
    """Signed by HMAC, with the text of the public key as the secret: what a verifier that asks the header believes.

    By hand: joserfc would refuse to make it.
    """
    told = ".".join(encoded(one) for one in ({"alg": "HS256", "kid": "first"}, claims))
    return f"{told}.{encoded(hmac.digest(KEY.as_pem(private=False), told.encode(), 'sha256'))}"


def unsigned(claims: dict[str, Any]) -> str:
    return f"{encoded({'alg': 'none'})}.{encoded(claims)}."


def encoded(part: object) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def test_a_token_of_the_provider_says_who_it_is() -> None:
    assert read(signed({**GOOD, "email": "anna@x"}))["email"] == "anna@x"
    assert read(signed({**GOOD, "aud": ["board", "api"], "azp": "board"}))["sub"] == "1"


def test_clocks_may_differ_by_half_a_minute() -> None:
    assert read(signed({**GOOD, "iat": NOW + LEEWAY_S, "nbf": NOW + LEEWAY_S, "exp": NOW - LEEWAY_S + 1}))
    for late in ({"exp": NOW - LEEWAY_S}, {"iat": NOW + LEEWAY_S + 1}, {"nbf": NOW + LEEWAY_S + 1}):
        with pytest.raises(SignInRefused):
            read(signed({**GOOD, **late}))


@pytest.mark.parametrize(
    "bent",
    [
        {"iss": "https://other.example"}, {"iss": None}, {"aud": "other"}, {"aud": ["other"]}, {"aud": None},
        {"aud": "other", "azp": "board"}, {"aud": ["board", "other"]}, {"aud": ["board", "other"], "azp": "other"},
        {"exp": NOW - 3600}, {"exp": None}, {"exp": "never"}, {"exp": True}, {"iat": None}, {"iat": "now"},
        {"nonce": "of another sign-in"}, {"nonce": None}, {"nonce": ["n"]}, {"sub": None}, {"sub": ""}, {"sub": 1},
        {"azp": "other"}, {"at_hash": "of another token"},
    ],
    ids=str,
)  # fmt: skip
def test_a_token_that_says_something_else_is_refused(bent: dict[str, Any]) -> None:
    claims = {name: value for name, value in {**GOOD, **bent}.items() if value is not None}
    with pytest.raises(SignInRefused) as refused:
        read(signed(claims), access_token="a" if "at_hash" in bent else None)
    assert refused.value.code == "token_bad"


@pytest.mark.parametrize(
    "forge",
    [
        unsigned, with_confused_key,
        lambda claims: signed(claims, OctKey.import_key("the secret of the board"), alg="HS256"),
        lambda claims: signed(claims, OTHER),
        lambda claims: signed(claims)[:-3] + "AAA",
        lambda claims: unsigned(claims) + signed(claims).rpartition(".")[2],
        lambda claims: signed(claims, ECKey.generate_key("P-256"), alg="ES256"),
        lambda claims: "", lambda claims: "a.b", lambda claims: "a.b.c", lambda claims: "é" * 9,
    ],
    ids=["none", "HS256-with-the-public-key", "HS256-with-the-secret", "another-key", "spoilt", "none-with-signature",
         "another-kind-of-key", "empty", "two-parts", "three-parts", "not-ascii"],
)  # fmt: skip
def test_a_token_that_the_provider_did_not_sign_is_refused(forge: Callable[[dict[str, Any]], str]) -> None:
    with pytest.raises(SignInRefused) as refused:
        read(forge(GOOD))
    assert refused.value.code == "token_bad"


def test_a_key_that_is_not_known_is_asked_for_and_not_guessed() -> None:
    with pytest.raises(UnknownKey):
        read(signed(GOOD, kid="second"))


def test_of_the_keys_only_public_ones_that_sign_are_taken() -> None:
    encrypts = {**OTHER.as_dict(private=False), "use": "enc", "kid": "e"}
    shared = {**OctKey.generate_key(256).as_dict(private=True), "kid": "first"}
    listed = [shared, encrypts, {"kty": "AKP", "kid": "x"}, {"kty": "RSA"}, "x", *PUBLIC["keys"]]
    assert [key.kid for key in keys_of({"keys": listed})] == ["first"]
    for none in ({"keys": [shared, encrypts]}, {"keys": "x"}, {}, [], None):
        with pytest.raises(SignInRefused, match="expected keys that sign"):
            keys_of(none)
