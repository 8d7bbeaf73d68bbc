"""The placement of a table's files: base paths, clones, and relocation of tables and base paths."""
