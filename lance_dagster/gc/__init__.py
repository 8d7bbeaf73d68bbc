"""Garbage collection: which versions stay, which files no version names, and their deletion."""
