"""Turns what people log into floats, without ever waiting for a device."""
