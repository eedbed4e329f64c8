"""Finds a job that hangs: which ranks are overdue, whom the others wait for, and the verdict. Pure."""
