"""The versions that exist, the names for them, and how a new version is made."""
