"""Reads the stacks and Flight Recorders that agents collect. Pure."""
