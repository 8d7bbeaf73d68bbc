"""`python -m lance_dagster.cli`: the command where it is not installed."""

from lance_dagster.cli.main import main

main(prog_name="lance-dagster")
