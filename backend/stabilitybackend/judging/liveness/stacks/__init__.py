"""Stacks and Flight Recorders from agents. Pure."""
