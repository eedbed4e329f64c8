"""Commands: checks against the job, and their life from the request to the effect. Pure."""
