"""A package, so that a fixture may live as long as its tests: see conftest.py."""
