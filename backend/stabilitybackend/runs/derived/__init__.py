"""Derived from one run's state for others: its rollback, restart plan, costs, and the fleet's memory."""
