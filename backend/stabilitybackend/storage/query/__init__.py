"""Queries of charts over a run's points: buckets, smoothing, x axes, and rows after a cursor."""
