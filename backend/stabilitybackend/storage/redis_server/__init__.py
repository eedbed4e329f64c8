"""The embedded Redis or Valkey: which binary, how it is started, kept alive and ended with us."""
