"""Branches and tags: their files, their life, and what is protected."""
