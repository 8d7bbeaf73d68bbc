"""The annotation of an input: the class that its rows are read as, and whether they may be missing."""

import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Union, get_args, get_origin

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin.resource import PinnedTable

_UNNAMED = (Any, None, object)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputType:
    """The annotation of an input.

    Attributes:
        kind: The class of one value; `list` for rows as dictionaries.
        optional: Whether the input is None when there is nothing to read: `Optional[T]`.
        by_partition: Whether the input has one value for each partition of the upstream: `dict[str, T]`.
        none_for_empty: Whether the value of a partition without rows is None: `dict[str, Optional[T]]`. A table stores
            no partitions, so such a partition cannot be told from one that was never written.
    """

    kind: type
    optional: bool = False
    by_partition: bool = False
    none_for_empty: bool = False

    @classmethod
    def of(cls, context: dg.InputContext) -> "InputType":
        """Return the type of an input.

        An input without an annotation is a `PinnedTable`. It reads nothing until one of its methods is called: asset
        checks often have no annotation, and a full read could fill memory. It carries the columns, the filter and the
        partitions of the input, which a `lance.LanceDataset` cannot.

        Raises:
            InvalidInputError: The annotation is not one class.
        """
        try:
            annotated: object = context.dagster_type.typing_type
        except dg.DagsterInvariantViolationError:  # called outside of a run
            return cls(kind=PinnedTable)
        # An input of an op that collects several outputs gets one call for each, with the type of the whole list.
        collected = not context.has_asset_key and get_origin(annotated) is list
        if collected and not _is_mapping((get_args(annotated) or (Any,))[0]):
            annotated = get_args(annotated)[0] if get_args(annotated) else Any
        found = _parsed(annotated)
        if found is None:
            raise InvalidInputError(
                f"{title_of(context)} is annotated with {annotated}; a table is read as one class, such as "
                "pyarrow.Table, as Optional[T], as dict[str, T] with a T for each partition, or as list[dict]"
            )
        return found


def title_of(context: dg.InputContext) -> str:
    """Return the words by which messages name an input, or the value that a program loads outside of a run."""
    if context.has_input_name:
        return f"input {context.name!r}"
    # Dagster gives `load_asset_value` a context without a name.
    return f"the value of {context.asset_key.to_user_string()}" if context.has_asset_key else "the value"


def _parsed(annotated: object) -> InputType | None:
    origin, given = get_origin(annotated), get_args(annotated)
    if any(annotated is one for one in _UNNAMED):
        return InputType(kind=PinnedTable)
    if origin in (Union, types.UnionType):
        inner = [one for one in given if one is not type(None)]
        found = _parsed(inner[0]) if len(inner) == 1 else None
        return replace(found, optional=True) if found else None
    if _is_mapping(annotated):
        found = _parsed(given[1]) if given else InputType(kind=PinnedTable)
        if found is None or found.by_partition:
            return None
        return replace(found, optional=False, by_partition=True, none_for_empty=found.optional)
    if annotated is list or (origin is list and (given[0] is Any or _is_mapping(given[0]))):
        return InputType(kind=list)
    return InputType(kind=annotated) if isinstance(annotated, type) and origin is None else None


def _is_mapping(annotated: object) -> bool:
    return annotated in (dict, Mapping) or get_origin(annotated) in (dict, Mapping)
