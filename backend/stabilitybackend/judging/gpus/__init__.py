"""What agents say of GPUs becomes findings about GPUs. Pure."""
