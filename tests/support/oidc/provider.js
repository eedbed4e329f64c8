// A real OpenID provider (node-oidc-provider, certified by the OpenID Foundation) on loopback, with its own pages.
// Usage: node provider.js SETTINGS_AS_JSON ; prints one line when it listens.

import { readFileSync } from "node:fs";
import Provider from "oidc-provider";

const given = JSON.parse(process.argv[2]);
/** @type {Record<string, Record<string, unknown>>} Name -> claims of a person; the file is read at each sign-in. */
const people = () => JSON.parse(readFileSync(given.people, "utf8"));

const provider = new Provider(given.issuer, {
  clients: [
    {
      client_id: given.clientId,
      client_secret: given.secret,
      redirect_uris: [given.redirect],
      post_logout_redirect_uris: [given.signedOut],
      token_endpoint_auth_method: given.auth,
      id_token_signed_response_alg: given.algorithm,
    },
  ],
  jwks: given.jwks,
  // Short tokens: what a scope gives is in the answer of the userinfo endpoint alone.
  conformIdTokenClaims: given.shortTokens,
  claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name", "groups"] },
  cookies: { keys: ["of the tests"] },
  enabledJWA: { idTokenSigningAlgValues: ["RS256", "PS256", "ES256", "Ed25519"] },
  features: { devInteractions: { enabled: true }, rpInitiatedLogout: { enabled: true } },
  pkce: { required: () => true },
  findAccount: (_context, name) => ({
    accountId: name,
    claims: () => ({ sub: `id-of-${name}`, ...people()[name] }),
  }),
});
provider.on("server_error", (_context, error) => console.error(error));
provider.listen(given.port, "127.0.0.1", () => console.log("listening"));
