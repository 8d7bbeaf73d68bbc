"""Merging: three-way merge of branches, its preview, cherry-pick, revert and the rows in conflict."""
