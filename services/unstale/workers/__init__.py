"""Worker processes: one pool, over local processes or a Ray cluster, and the inversions that it computes."""
