"""Calls about users: proposals, approvals, ratings, and the audit log."""
