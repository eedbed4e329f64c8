"""Sign-in at an OpenID provider: authorization code flow with PKCE, state and nonce. Promises: docs/security.md."""
