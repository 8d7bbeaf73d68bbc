"""Changes of a table's rows and columns, one commit each: append, delete, update, upsert, columns, compaction."""
