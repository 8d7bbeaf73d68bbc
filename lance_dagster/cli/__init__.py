"""The `lance-dagster` command: one module for each group of subcommands, `main` puts them together.

The command starts in a fraction of a second, so nothing heavy is imported before a subcommand needs it.
"""
