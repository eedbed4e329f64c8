"""Commands of the terminal that order something of a job."""
