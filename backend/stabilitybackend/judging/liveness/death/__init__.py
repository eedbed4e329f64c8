"""Finds processes that died: one incident for each death of the job, with its cause. Pure."""
