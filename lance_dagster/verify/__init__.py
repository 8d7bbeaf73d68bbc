"""Verification: what must hold of a table's manifests, files and refs, and the checks of it."""
