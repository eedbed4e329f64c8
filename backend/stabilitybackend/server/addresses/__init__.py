"""Addresses in browsers: a path in front, and foreign host names."""
