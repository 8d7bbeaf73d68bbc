"""Commits and refs of a repository: what they are, where they are stored, and what an expression names."""
