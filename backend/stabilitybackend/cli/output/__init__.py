"""How commands print what they found."""
