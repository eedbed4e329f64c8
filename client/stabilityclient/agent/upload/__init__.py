"""Carries the spool to the server: reads records, frames and sends them, and removes the confirmed ones."""
