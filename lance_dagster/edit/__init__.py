"""Edits of a table: append, delete, update, upsert and column edits, one commit each; and compaction, in two."""
