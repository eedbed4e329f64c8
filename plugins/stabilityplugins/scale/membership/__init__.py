"""Who works on a Redis: one server alone, or processes with roles."""
