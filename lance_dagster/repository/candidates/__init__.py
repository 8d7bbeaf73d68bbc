"""The record of candidates: what runs wrote, what was audited, and which writes a commit has published or dropped."""
