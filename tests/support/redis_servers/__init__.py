"""Real servers of many parts: a Redis Cluster, and a primary with its replica and a Sentinel."""
