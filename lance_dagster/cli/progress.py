"""What is shown on standard error of what takes long, where somebody is looking: a bar, or for how long it goes on."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import click

_WIDTH = 30
_SECOND = 1.0


@contextmanager
def bar() -> Iterator[Callable[[int, int], None] | None]:
    """Give what is to be called with how much is done of how much, or None where nobody looks; clear the line after."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        yield _show
    finally:
        _clear()


@contextmanager
def busy(doing: str) -> Iterator[None]:
    """Say what is being done, and for how many seconds already, where nobody knows how much there is to do."""
    if not sys.stderr.isatty():
        yield
        return
    done = Event()
    telling = Thread(target=_tell, args=(doing, done), daemon=True)
    telling.start()
    try:
        yield
    finally:
        done.set()
        telling.join()
        _clear()


def _tell(doing: str, done: Event) -> None:
    seconds = 0
    while True:
        click.echo(f"\r{doing}{f', {seconds} s' if seconds else ''} ...", nl=False, err=True)
        if done.wait(_SECOND):
            return
        seconds += 1


def _clear() -> None:
    click.echo("\r" + " " * (_WIDTH + 40) + "\r", nl=False, err=True)


def _show(done: int, total: int) -> None:
    filled = _WIDTH * done // max(total, 1)
    click.echo(f"\r[{'#' * filled}{' ' * (_WIDTH - filled)}] {done:,} of {total:,}", nl=False, err=True)
