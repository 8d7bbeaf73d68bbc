"""Commits and refs of a repository: their values, their storage, and the resolution of ref expressions."""
