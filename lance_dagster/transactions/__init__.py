"""Rules by which a transaction turns a version into the next version. No module here reads files or a clock."""
