"""Where a table's files lie: base paths, clones, and tables that were moved."""
