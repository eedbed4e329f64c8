"""Makes one incident of each real event, and suggests what to do about it. Pure."""
