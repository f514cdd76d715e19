"""Reports of recorded runs: one HTML page, tables and pictures. Run directories are only read."""
