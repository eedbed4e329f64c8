"""What the ranks print: the ends of their output files, cleaned and bounded, for the page beside the curve."""
