"""The reference of the command, made from its help: `python -m tests.cli.reference` writes it into docs/cli.md.

The text between the marks is replaced; the rest of the page is kept.
"""

from pathlib import Path

import click

from lance_dagster.cli.main import TOPICS, main

PAGE = Path(__file__).parent.parent.parent / "docs" / "cli.md"
BEGIN, END = "<!-- from the command's own help -->\n", "<!-- end -->\n"
WIDTH = 110
SHARED = {"--storage-option", "--json", "--help"}


def section(command: click.Command, group: click.Group = main) -> str:
    """One command: its call, its effect, and its options other than the common ones; a group with all its commands."""
    name = "lance-dagster" if group is main else f"lance-dagster {group.name}"
    parent = click.Context(group, info_name=name, **main.context_settings)
    context = click.Context(command, parent=parent, info_name=command.name)
    formatter = click.HelpFormatter(width=WIDTH)
    command.format_usage(context, formatter)
    command.format_help_text(context, formatter)
    options = [param for param in command.get_params(context) if isinstance(param, click.Option)]
    own = [option for option in options if not SHARED & set(option.opts)]
    records = [record for option in own if (record := option.get_help_record(context)) is not None]
    if records:
        with formatter.section("Options"):
            formatter.write_dl(records)
    command.format_epilog(context, formatter)
    title = f"### {command.name}" if group is main else f"#### {group.name} {command.name}"
    text = f"{title}\n\n```text\n{formatter.getvalue().strip()}\n```\n"
    if not isinstance(command, click.Group):
        return text
    return "\n".join([text, *(section(each, command) for each in command.commands.values())])


def reference() -> str:
    """All commands by topic."""
    topics = (f"## {topic}\n\n" + "\n".join(map(section, commands)) for topic, commands in TOPICS.items())
    return "\n" + "\n".join(topics) + "\n"


def with_reference(page: str) -> str:
    """The page with the current reference."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{reference()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_reference(PAGE.read_text()))
