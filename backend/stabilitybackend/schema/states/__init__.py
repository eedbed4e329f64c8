"""States as people see them: the tables of words, tones and shapes."""
