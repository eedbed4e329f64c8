"""Small real trainings whose data is resumed rightly or wrongly, for ``wrong_resumes.py``."""
