"""The types in public signatures, and the text that values print as."""

import dataclasses
import datetime as dt
import inspect
import pydoc
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import lance_dagster
import lance_dagster.types as public_types
from lance_dagster import (
    InvalidInputError,
    LanceIOManager,
    LanceRepository,
    LanceResource,
    LanceTable,
    Version,
    errors,
    operations,
)
from lance_dagster.edit.upsert import WhenMissing, WhenNotMatched
from lance_dagster.types import (
    Branches,
    ChangeKind,
    Channels,
    Columns,
    Config,
    ConflictKind,
    Fragment,
    Maintenance,
    MergeMode,
    PipesTable,
    Publications,
    RepositoryMaintenance,
    RepositoryTags,
    Tags,
    Winner,
    WriteMode,
)
from tests.table_factory import entries, new_table

NAMESPACES = (
    Branches,
    Channels,
    Columns,
    Config,
    Maintenance,
    Publications,
    RepositoryMaintenance,
    RepositoryTags,
    Tags,
)
TYPED = {name: getattr(lance_dagster, name) for name in dir(lance_dagster)}
"""The names that users type."""
PUBLIC = {name: getattr(module, name) for module in (lance_dagster, public_types, errors) for name in dir(module)}
"""The names that users type, the types of what these take and return, and the errors."""
PUBLIC = {name: value for name, value in PUBLIC.items() if getattr(value, "__module__", "").startswith("lance_dagster")}
OPERATIONS = {found for found in vars(operations).values() if getattr(found, "__module__", "") == operations.__name__}
TIME = re.compile(r"_at$|time|_ns$|^(now|since|until|older_than|grace)$")
CALLED_BY_SPARK = tuple(f"LanceDataSource.{name}" for name in ("reader", "writer", "streamReader", "streamWriter"))
# Each of their methods is a commit, or is listed below: it reads, it writes no version, or the transaction or the
# commit that it is given says it.
WRITERS = (LanceTable, *NAMESPACES, LanceRepository, PipesTable)
WITHOUT_MESSAGE = {
    f"{owner}.{name}"
    for owner, names in {
        "Branches": "ahead_behind create delete fork get graph has_versions is_merged is_ready list merge_base newest "
        "opened_at opened_ref protect protection recall recover rename set_metadata status unmerged unprotect "
        "version_numbers",
        "Channels": "divided entries_after get history list refuse_immovable unpromoted",
        "Config": "get table_metadata",
        "LanceRepository": "at candidates diff discard discover fork head log name_of open open_uri registered_id "
        "status table table_id tables uri",
        "LanceTable": "at commit count_rows diff exists head log open preview_merge read scan schema stage "
        "to_lance write_target",
        "Maintenance": "allow_base bases collect_garbage content_id indices migrate_manifest_names "
        "plan_compaction record_digests verify",
        "PipesTable": "check report",
        "Publications": "commit_with follow is_merged land mark_of newest_read pin_again pinned writes_of",
        "RepositoryMaintenance": "collect free held_versions record_branches repair",
        "RepositoryTags": "delete list",
        "Tags": "create delete get history hold list move protect release rename rollback set_metadata unprotect",
    }.items()
    for name in names.split()
}


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


def argument_names(function: types.FunctionType) -> set[str]:
    """The arguments of a function, with the keys of the TypedDict of its keyword arguments."""
    found = set()
    for name, parameter in inspect.signature(function).parameters.items():
        options = typing.get_args(parameter.annotation) if parameter.kind is parameter.VAR_KEYWORD else ()
        found |= set(options[0].__annotations__) if options else {name}
    return found


def public_classes() -> list[type]:
    """Every class among the public names, and every operation of a transaction."""
    values = {*PUBLIC.values()} | OPERATIONS
    return sorted((value for value in values if isinstance(value, type)), key=lambda owner: owner.__name__)


def public_functions() -> Iterator[tuple[str, types.FunctionType]]:
    """Every function among the public names, and every public method."""
    yield from ((name, value) for name, value in PUBLIC.items() if isinstance(value, types.FunctionType))
    for owner in public_classes():
        for name, found in signatures(owner):
            yield f"{owner.__name__}.{name}", found
        # The attributes of an error are what it is made with; other objects are made by the package.
        if issubclass(owner, Exception) and isinstance(owner.__init__, types.FunctionType):
            yield owner.__name__, owner.__init__


def public_fields() -> Iterator[tuple[str, str, object, Mapping[str, object]]]:
    """Every public field of a dataclass among the public names, with its annotation and the names it may use."""
    for owner in public_classes():
        for field in dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ():
            if not field.name.startswith("_"):
                yield owner.__name__, field.name, field.type, vars(sys.modules[owner.__module__])


def test_every_type_of_a_signature_is_exported() -> None:
    """A caller can name what a function takes and returns, and what a value holds."""
    exported = {*PUBLIC.values()} | OPERATIONS
    used: list[tuple[str, object, Mapping[str, object]]] = [
        (name, annotation, function.__globals__)
        for name, function in public_functions()
        if name not in CALLED_BY_SPARK
        for annotation in inspect.get_annotations(function).values()
    ]
    used += [(f"{owner}.{name}", found, names) for owner, name, found, names in public_fields()]
    missing = {
        f"{where}: {found.__name__}"
        for where, annotation, names in used
        for found in project_types(annotation, names)
        if found not in exported
    }
    assert set() == missing


def test_points_in_time_are_datetimes_and_durations_timedeltas() -> None:
    """No number, of which one has to know the unit, and no text."""
    # The values of the format have what the files have, where `created_at` of a fragment is a sequence of versions.
    named = [
        (f"{owner}.{name}", name, found)
        for owner, name, found, names in public_fields()
        if names["__name__"] not in (operations.__name__, Fragment.__module__)
    ]
    for where, function in public_functions():
        named += [(f"{where}({name})", name, found) for name, found in inspect.get_annotations(function).items()]
    times = [(where, found) for where, name, found in named if TIME.search(name)]
    wrong = {
        where
        for where, found in times
        for part in typing.get_args(found) or (found,)
        if not (isinstance(part, type) and issubclass(part, (dt.datetime, dt.timedelta, types.NoneType)))
    }
    assert {"Version.committed_at", "LogFilter.since", "Maintenance.collect_garbage(grace)"} <= {
        one for one, _ in times
    }
    assert set() == wrong


def test_an_argument_that_names_a_version_has_a_word_for_it() -> None:
    """`ref` where it is read, `at` where a name is to point to it; a `branch` and a `name` are no versions."""
    refs = [
        (where, name)
        for where, function in public_functions()
        for name, annotation in inspect.get_annotations(function).items()
        for found in [function.__globals__.get(annotation) if isinstance(annotation, str) else annotation]
        if Version in typing.get_args(found) and str in typing.get_args(found) and name != "return"
    ]
    assert {"LanceTable.write_target", "Tags.move", "read_table"} <= {where for where, _ in refs}
    words = {"ref", "other", "at", "source", "before", "after", "newest", "expected"}
    assert [] == [f"{where}({name})" for where, name in refs if name not in words]


def test_every_method_that_commits_takes_a_message_and_properties() -> None:
    """A move of a channel has a `reason`, which is what a commit calls its message."""
    methods = {
        f"{owner.__name__}.{name}": argument_names(found)
        for owner in WRITERS
        for name, found in signatures(owner)
        if not isinstance(inspect.getattr_static(owner, name), property)
    }
    said = {"message", "properties"}, {"reason", "properties"}
    without = {name for name, taken in methods.items() if not said[name.startswith(f"{Channels.__name__}.")] <= taken}
    assert WITHOUT_MESSAGE == without


def test_messages_of_methods_that_commit_rarely(tmp_path: Path) -> None:
    """A table's first version, a clone's, a merge on a preview branch, and the commits of a relocation."""
    said: dict[str, Any] = {"message": "for the audit", "properties": {"ticket": "7"}}
    table = LanceTable.create(tmp_path / "t", entries("a", 1).schema, **said)
    table.append(entries("a", 1))
    table.branches.create("run")
    table.append(entries("b", 2), branch="run")
    shown = table.branches.preview("run", **said)
    clone = table.maintenance.clone(tmp_path / "clone", "run", **said)
    (tmp_path / "t").rename(tmp_path / "moved")
    moved = LanceTable.open(tmp_path / "moved")
    moved.maintenance.relocate(**said)
    made = [moved.at("main@1"), moved.head(shown.name), moved.head("run"), clone.head()]
    assert [("for the audit", "7")] * 4 == [(version.message, version.properties["ticket"]) for version in made]


@pytest.mark.parametrize(
    "choices,refused",
    [
        (MergeMode, lambda table: table.merge("run", mode="rebase")),
        (Winner, lambda table: table.merge("run", strategy="ours")),
        (ConflictKind, lambda table: table.merge("run", strategy={"cells of": "dest-wins"})),
        (ChangeKind, lambda table: table.diff("main", "run").rows("inserted")),
        (WhenMissing, lambda table: table.upsert(entries("a", 1), on=["key"], when_missing="drop")),
        (WhenNotMatched, lambda table: table.upsert(entries("a", 1), on=["key"], when_not_matched="keep")),
        (WriteMode, lambda _: LanceIOManager(lance=LanceResource(root="/nowhere"), write_mode="trunc")),
    ],
    ids=["mode", "winner", "kind", "rows", "when_missing", "when_not_matched", "write_mode"],
)
def test_what_is_no_choice_is_refused_with_the_choices(
    tmp_path: Path, choices: object, refused: Callable[[LanceTable], object]
) -> None:
    """One error names all of them."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run")
    with pytest.raises(InvalidInputError) as caught:
        refused(table)
    assert [] == [choice for choice in typing.get_args(choices) if choice not in str(caught.value)]


def test_help_shows_no_inherited_and_no_private_members() -> None:
    """`help(LanceTable)` lists the methods of a table and nothing else."""
    text = pydoc.plain(pydoc.render_doc(LanceTable))
    assert "inherited from" not in text
    # Seven screens of 50 lines, in which a signature is at most two lines of a wide terminal.
    lines = text.splitlines()
    assert (True, []) == (len(lines) <= 350, [line for line in lines if len(line) > 300])
    assert [] == re.findall(r"^ \|  (_[a-z]\w*)", text, re.MULTILINE)


def test_values_print_as_short_text(tmp_path: Path) -> None:
    """Aligned, in lines, and numbers agree with their nouns."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run/long")
    table.branches.create("b")
    table.append(entries("b", 1, 2), branch="run/long")
    table.append(entries("c", 1))
    table.tags.create("v1", "main@2")
    assert str(table.branches.status()) == (
        "main@3: 2 rows\n"
        "branch b         b@2         1 row   0 ahead, 1 behind\n"
        "branch run/long  run/long@3  3 rows  1 ahead, 1 behind\n"
        "tag    v1        main@2      1 row   0 ahead, 1 behind"
    )
    assert str(table.maintenance.verify()) == (
        "no problems: 6 versions, 3 branches, 1 tag, 5 fragments, 3 data files, 0 deletion files, 0 index files"
    )
    assert str(table.maintenance.collect_garbage()) == "dry run: 0 versions expire, 0 files to delete (0 bytes)"


def test_refs_print_without_what_the_package_keeps_in_them(tmp_path: Path) -> None:
    """A branch, a tag, its moves, the protection and a relocation are one short line each."""
    table = new_table(tmp_path / "here", entries("a", 1))
    assert "run, forked from main@2" == str(table.branches.create("run"))
    assert "v1: main@2, immutable" == str(table.tags.create("v1", "main", immutable=True))
    table.tags.create("live", "main@1")
    moved = table.tags.move("live", "main@2")
    assert "live: main@2" == str(moved)
    assert re.fullmatch(
        r"live: main@2, held by .+ since [\d-]+ [\d:]+Z: why", str(table.tags.hold("live", reason="why"))
    )
    table.tags.release("live", reason="checked")
    table.tags.rollback("live")
    back, first, new = map(str, table.tags.history("live"))
    moment = r" by .+ at [\d-]+ [\d:]+Z"
    assert re.fullmatch(rf"main@2 -> main@1{moment}, 1 step back", back)
    assert re.fullmatch(rf"main@1 -> main@2{moment}", first)
    assert re.fullmatch(rf"new -> main@1{moment}", new)
    assert "nothing is protected" == str(table.branches.protection())
    assert "branches main, release/*; tags v*" == str(table.branches.protect(["main", "release/*"], tags=["v*"]))
    assert "every base path is correct" == str(table.maintenance.relocate())
    (tmp_path / "here").rename(tmp_path / "there")
    moved_table = LanceTable.open(next((tmp_path / "there").iterdir()))
    planned = moved_table.maintenance.relocate(dry_run=True)
    assert "branch run: run@2 would change, 1 base path, 1 file" == str(planned)
    assert "branch run: run@2 -> run@3, 1 base path, 1 file" == str(moved_table.maintenance.relocate())


def test_a_single_row_is_no_rows(tmp_path: Path) -> None:
    """Numbers agree with their nouns in previews and in errors."""
    table = new_table(tmp_path, entries("a", 1))
    table.branches.create("run")
    table.columns.add({"twice": "value * 2"}, branch="run")
    table.append(entries("b", 2))
    assert "needs backfill: twice, null in 1 row\n" in str(table.preview_merge("run"))
    table.merge("run")
    with pytest.raises(InvalidInputError):
        table.columns.set_nullable("twice", nullable=False)
