"""A night with sick runs, and the two ways in which somebody looks at it."""
