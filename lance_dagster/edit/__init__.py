"""Edits of a table's rows and columns, one commit each: append, delete, update, upsert, column edits, compaction."""
