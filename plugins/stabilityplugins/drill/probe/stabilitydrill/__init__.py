"""Probe in the job of a drill: checksums of the training state at each optimizer step.

It imports the standard library, and torch only once the job has imported it. The drill reads its files.
"""
