"""Merges whose process dies, or whose write fails, at some request."""

from lance_dagster import LanceTable
from lance_dagster.errors import CommitStateUnknownError, MergeConflictError, StoreError
from lance_dagster.store import open_store
from tests.properties.merging.operation_context import FAST, Dice
from tests.store.scripted import (
    PlugPulledError,
    Request,
    Script,
    ScriptedStore,
    answer_lost_at_write,
    plug_pulled_before_write,
)
from tests.table_factory import context_on

_WRITES, _REQUESTS = 5, 40
"""At most so many are let through: about what a merge of a small table makes."""


def cut_short(uri: str, source: str, into: str, dice: Dice) -> str:
    """Begin a merge that does not return; return how it ended, which the caller of a dead process cannot know."""
    kind = dice.below(4)
    if kind == 0:
        script = _plug_pulled_before_request(dice.below(_REQUESTS))
    elif kind == 1:
        script = answer_lost_at_write(dice.below(_WRITES))
    else:
        script = plug_pulled_before_write(dice.below(_WRITES))
    table = LanceTable(context_on(ScriptedStore(open_store(uri, FAST), script)))
    try:
        table.merge(source, into=into)
    except PlugPulledError:
        return "died"
    except (StoreError, CommitStateUnknownError):
        return "failed"
    except MergeConflictError:
        return "refused"
    return "lived"


def _plug_pulled_before_request(number: int) -> Script:
    left = number

    def script(request: Request) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise PlugPulledError
        return request.send()

    return script
