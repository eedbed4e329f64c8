"""Which command fits a job, and its life from the request to the effect. Pure."""
