"""Tells apart a job that hangs, a process that died, and an agent that does not reach the server. Pure."""
