"""Which metric of a run is what: by the table of names, as the job declares it, or by what its values do."""
