"""Runs in the job that a drill watches: notes at each optimizer step what the training state is, as checksums.

It imports the standard library, and torch only once the job has imported it. The drill reads its files.
"""
