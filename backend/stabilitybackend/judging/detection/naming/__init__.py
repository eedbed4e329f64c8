"""Roles of a run's metrics: by the table of names, by declaration, or by values."""
