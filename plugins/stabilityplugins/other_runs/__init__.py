"""Which other run of the project had the data of a live run: by batch ids, or by what is new in each loss."""
