"""The `lance-dagster` command: one module per group of subcommands, `command` for what all have in common.

It starts in a fraction of a second, so nothing heavy is imported before a subcommand needs it.
"""
