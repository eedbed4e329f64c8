"""Checks of resumes: after each fork the new branch is compared with the discarded one."""
