"""The types in public signatures, and the text that values print as."""

import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import lance_dagster
from lance_dagster import LanceTable
from lance_dagster.table.branches import Branches
from lance_dagster.table.columns import Columns
from lance_dagster.table.config import Config
from lance_dagster.table.maintenance import Maintenance
from lance_dagster.table.tags import Tags
from tests.table_factory import entries, new_table

NAMESPACES = (Branches, Columns, Config, Maintenance, Tags)


def project_types(annotation: object, names: Mapping[str, object]) -> Iterator[type]:
    """The classes of this package that an annotation is made of; one in quotes is looked at name by name."""
    if isinstance(annotation, str):
        for name in re.findall(r"\w+", annotation):
            yield from project_types(names.get(name), {})
        return
    if isinstance(annotation, type) and not typing.get_args(annotation):
        if annotation.__module__.startswith("lance_dagster"):
            yield annotation
        return
    for part in typing.get_args(annotation):
        yield from project_types(part, names)


def signatures(owner: type) -> Iterator[tuple[str, types.FunctionType]]:
    """The public methods and properties of a class, with the functions behind them."""
    for name, member in inspect.getmembers_static(owner):
        if name.startswith("_"):
            continue
        found = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if isinstance(found, types.FunctionType):
            yield name, found


@pytest.mark.parametrize("owner", [LanceTable, *NAMESPACES], ids=lambda owner: owner.__name__)
def test_every_type_of_a_signature_is_exported(owner: type) -> None:
    """A caller can name what a method takes and returns; the namespaces are reached through the table."""
    exported = {getattr(lance_dagster, name) for name in lance_dagster.__all__}
    # `Unpack[When]` stands for the keyword arguments, which are written out by name.
    missing = {
        f"{name}: {found.__name__}"
        for name, function in signatures(owner)
        for annotation in inspect.get_annotations(function).values()
        for found in project_types(annotation, function.__globals__)
        if found not in exported and found not in NAMESPACES and not typing.is_typeddict(found)
    }
    assert set() == missing


def test_values_print_as_short_text(tmp_path: Path) -> None:
    """Aligned, in lines, and numbers agree with their nouns."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run/long")
    table.branches.create("b")
    table.append(entries("b", 1, 2), branch="run/long")
    table.append(entries("c", 1))
    table.tags.create("v1", "main@2")
    assert str(table.status()) == (
        "main@3: 2 rows\n"
        "branch b         b@2         1 row   0 ahead, 1 behind\n"
        "branch run/long  run/long@3  3 rows  1 ahead, 1 behind\n"
        "tag    v1        main@2      1 row   0 ahead, 1 behind"
    )
    assert str(table.maintenance.verify()) == (
        "no problems: 6 versions, 3 branches, 1 tag, 5 fragments, 3 data files, 0 deletion files, 0 index files"
    )
    assert str(table.maintenance.collect_garbage()) == "dry run: 0 versions expire, 0 files to delete (0 bytes)"
