"""A bar on standard error for what takes long, where somebody is looking."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

_WIDTH = 30


@contextmanager
def bar() -> Iterator[Callable[[int, int], None] | None]:
    """Give what is to be called with how much is done of how much, or None where nobody looks; clear the line after."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        yield _show
    finally:
        click.echo("\r" + " " * (_WIDTH + 40) + "\r", nl=False, err=True)


def _show(done: int, total: int) -> None:
    filled = _WIDTH * done // max(total, 1)
    click.echo(f"\r[{'#' * filled}{' ' * (_WIDTH - filled)}] {done:,} of {total:,}", nl=False, err=True)
