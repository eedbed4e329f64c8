"""OpenID providers for tests: a real one (node-oidc-provider), and a fake one that does what no good one does."""
