"""Users without a key, authenticated by a trusted proxy or an OpenID provider; a local file has their rights."""
