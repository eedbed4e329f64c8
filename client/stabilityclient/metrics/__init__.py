"""Turns logged values into floats, without ever waiting for a device."""
