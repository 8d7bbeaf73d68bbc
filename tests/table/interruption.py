"""Somebody else, who is faster."""

from collections.abc import Callable

from lance_dagster import LanceTable
from tests.store.scripted import Request, ScriptedStore
from tests.table_factory import context_of, context_on


def interrupted(table: LanceTable, act: Callable[[], object]) -> LanceTable:
    """The table, with somebody who does something just before its first commit lands."""
    waiting = [act]

    def script(request: Request) -> object:
        if request.commits and waiting:
            waiting.pop()()
        return request.send()

    return LanceTable(context_on(ScriptedStore(context_of(table).store, script)))
