"""One table that the package and pylance write in any order, on `main` and on branches, compared with a model.

After every step both programs read what the model says (rows, row ids, versions of rows, counts, indexed queries,
config), and sometimes older versions are compared too. Steps that come too late (an old handle of pylance, a
transaction prepared before others committed) either have their effect or are refused; a refused step changes nothing.

`make soak` runs more steps, and counts how many of each kind there were.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, seed, settings, strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from lance_dagster import LanceTable
from lance_dagster.errors import ConflictError, InvalidInputError, MergeConflictError, VersionNotFoundError
from lance_dagster.store import open_store
from tests.properties import operations
from tests.properties.machine import COUNTED, MOST_COLUMNS, TOO_LATE, FileVersion, Machine
from tests.properties.operations import KINDS
from tests.properties.replica import KEY, Line, merged
from tests.properties.replica_checks import described
from tests.properties.writers import PackageWriter, PylanceWriter, prepared
from tests.soak import FACTOR, FIRST_SEED
from tests.store.scripted import ScriptedStore, intruder_at_commit
from tests.table_factory import context_on

HISTORIES, STEPS = 40 if FACTOR else 5, 50
"""How many tables one test makes, and how many steps it does with each at most."""
MOST_BRANCHES = 4
BY_BOTH = ("append", "delete", "update", "upsert")
WITHOUT_MOVES = ("append", "delete", "replace")


class Together(Machine):
    """The steps, which may be done in any order."""

    @initialize(stable=st.booleans(), file_version=st.sampled_from(["2.0", "2.1", "2.2"]), rows=st.integers(0, 9))
    def create(self, *, stable: bool, file_version: FileVersion, rows: int) -> None:
        """Make the table."""
        self.start(stable=stable, file_version=file_version, rows=rows)

    @rule(data=st.data())
    def edit_by_package(self, data: st.DataObject) -> None:
        """Change rows by their keys."""
        branch = self.branch(data)
        head = self.lines[branch].head
        work = self.work(data, head, KINDS)
        self.commit(f"package {work.kind}", branch, lambda: work.do(self.package, branch), *work.outcomes(head))

    @rule(data=st.data())
    def edit_by_pylance(self, data: st.DataObject) -> None:
        """Change rows by their keys."""
        branch = self.branch(data)
        head = self.lines[branch].head
        work = self.work(data, head, (*BY_BOTH, "upsert partly"))
        self.commit(f"pylance {work.kind}", branch, lambda: work.do(self.pylance, branch), *work.outcomes(head))

    @rule(data=st.data())
    def delete_where(self, data: st.DataObject) -> None:
        """Delete the rows that match a filter, which may be none or all."""
        branch, side = self.branch(data), self.side(data)
        head = self.lines[branch].head
        condition = self.condition(data, head)
        after = head.without(head.selected(condition))
        self.commit("delete where", branch, lambda: side.delete(branch, condition.sql), after)

    @rule(data=st.data())
    def update_where(self, data: st.DataObject) -> None:
        """Increment a number in the rows that match a filter."""
        branch, side = self.branch(data), self.side(data)
        head = self.lines[branch].head
        column = next((column for column in head.columns if column.type == pa.int64()), None)
        if column is None:
            return
        condition = self.condition(data, head)
        values = {column.name: f"{column.name} + 1"}
        rows = {}
        for key in head.selected(condition):
            cell = column.of(head.rows[key])
            assert not isinstance(cell, str)
            rows[key] = head.rows[key].changed({column.token: None if cell is None else cell + 1})
        after = head.with_rows(rows)
        self.commit("update where", branch, lambda: side.update(branch, values, condition.sql), after)

    @rule(data=st.data(), anew=st.booleans(), rows=st.integers(0, 4))
    def overwrite(self, data: st.DataObject, *, anew: bool, rows: int) -> None:
        """Overwrite the table, sometimes with other columns."""
        branch, side = self.branch(data), self.side(data)
        head = self.lines[branch].head
        columns = head.columns
        if anew:
            columns = (self.column(self.new_name("w"), pa.string()), self.column("number", pa.int64()))
        after = replace(head, columns=columns, rows={}, indices={})
        after = after.with_rows(after.made_up(self.new_keys(rows)))
        self.commit("overwrite", branch, lambda: side.overwrite(branch, after.arrow(after.rows)), after)

    @rule(data=st.data())
    def change_columns(self, data: st.DataObject) -> None:
        """Add, drop, rename or cast a column."""
        branch, side = self.branch(data), self.side(data)
        head = self.lines[branch].head
        work = self.column_work(data, head) if len(head.columns) < MOST_COLUMNS else operations.drop(head.columns[0])
        self.commit(f"{side.name} {work.kind}", branch, lambda: work.do(side, branch), *work.outcomes(head))

    @rule(data=st.data())
    def add_by_function(self, data: st.DataObject) -> None:
        """Add a column whose values a function computes."""
        branch, side = self.branch(data), self.side(data)
        head, name = self.lines[branch].head, self.new_name("c")
        if len(head.columns) < MOST_COLUMNS:
            after = head.with_column(self.column(name, pa.int64()), lambda key, _: 3 * key)
            self.commit("add by function", branch, lambda: side.add_function(branch, name), after)

    @rule(data=st.data(), key=st.sampled_from("xyz"), value=st.sampled_from([None, "1", "2"]), config=st.booleans())
    def describe(self, data: st.DataObject, key: str, value: str | None, *, config: bool) -> None:
        """Set or delete a key of the config or of the metadata."""
        branch, side = self.branch(data), self.side(data)
        head = self.lines[branch].head
        before = head.config if config else head.metadata
        changed = {name: own for name, own in {**before, key: value}.items() if own is not None}
        if config:
            after, act = replace(head, config=changed), lambda: side.configure(branch, key, value)
        else:
            after, act = replace(head, metadata=changed), lambda: side.describe(branch, key, value)
        self.commit("describe", branch, act, after)

    @rule(data=st.data())
    def index(self, data: st.DataObject) -> None:
        """Create an index."""
        branch = self.branch(data)
        head = self.lines[branch].head
        if not head.columns:
            return
        column = data.draw(st.sampled_from(head.columns), label="column")
        kind = "BITMAP" if column.is_text else "BTREE"
        after = replace(head, indices={**head.indices, f"of_{column.name}": column.token})
        self.commit("index", branch, lambda: self.pylance.index(branch, column.name, kind), after)

    @precondition(lambda self: any(line.head.indices for line in self.lines.values()))
    @rule(data=st.data())
    def drop_index(self, data: st.DataObject) -> None:
        """Drop an index."""
        branch = self.branch(data)
        head = self.lines[branch].head
        if not head.indices:
            return
        name = data.draw(st.sampled_from(sorted(head.indices)), label="index")
        after = replace(head, indices={other: token for other, token in head.indices.items() if other != name})
        self.commit("drop index", branch, lambda: self.pylance.drop_index(branch, name), after)

    @rule(data=st.data(), how=st.sampled_from(["package compaction", "compaction", "optimize", "clean-up"]))
    def maintain(self, data: st.DataObject, how: str) -> None:
        """Compact, update the indices, clean up; no row changes."""
        branch = self.branch(data)
        line = self.lines[branch]
        inherited = branch != "main" and line.head.indices
        if how == "optimize":
            self.commit(how, branch, lambda: self.pylance.optimize(branch), line.head)
        elif how == "package compaction":
            # The package may refuse a compaction that only pylance could do, and that would break an index.
            self.attempt(how, branch, lambda: self.package.compact(branch), [line.head])
        elif how == "compaction" and not inherited:
            # Pylance's compaction of a branch breaks the indices the branch inherited.
            self.commit(how, branch, lambda: self.pylance.compact(branch), line.head)
        elif how == "clean-up":
            self.commit(how, branch, lambda: self.pylance.clean_up(branch), line.head)
            # Files that no version refers to yet count as garbage.
            self.drafts = [draft for draft in self.drafts if branch not in ("main", draft[0])]
            # Pylance does not see versions that came and were cleaned up since its handle was opened.
            self.handles = [handle for handle in self.handles if handle[0] != branch]
            left = LanceTable.open(self.uri).branches.version_numbers(branch)
            kept = {line.number, *(number for tagged, number in self.tags.values() if tagged == branch)}
            assert kept <= set(left)
            # Pylance keeps versions from which branches were forked, but may delete their files.
            line.versions = {number: line.versions[number] for number in kept}
            for other in self.lines:
                self.look_at(other, self.lines[other].number)

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        """Restore a version."""
        branch, side = self.branch(data), self.side(data)
        number = self.any_version(data, branch)
        line = self.lines[branch]
        after = line.head.restored(line.versions[number])
        self.commit("restore", branch, lambda: side.restore(branch, number), after)

    @rule(data=st.data())
    def look_back(self, data: st.DataObject) -> None:
        """Read an older version."""
        COUNTED["look back"] += 1
        branch = self.branch(data)
        self.look_at(branch, self.any_version(data, branch))

    @rule(data=st.data())
    def tag(self, data: st.DataObject) -> None:
        """Create or delete a tag."""
        COUNTED["tag"] += 1
        branch, side = self.branch(data), self.side(data)
        gone = bool(self.tags) and data.draw(st.booleans(), label="delete")
        if gone:
            name = data.draw(st.sampled_from(sorted(self.tags)), label="tag")
            side.delete_tag(name)
            del self.tags[name]
        else:
            name, number = self.new_name("t"), self.any_version(data, branch)
            side.create_tag(name, branch, number)
            self.tags[name] = branch, number

    @precondition(lambda self: len(self.lines) < MOST_BRANCHES)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """Fork a branch from any version."""
        parent, side = self.branch(data), self.side(data)
        number, name = self.any_version(data, parent), self.new_name("b")
        snapshot = self.lines[parent].versions[number]
        COUNTED["fork"] += 1
        side.create_branch(name, parent, number)
        self.lines[name] = Line({number: snapshot}, parent)
        self.settle(name, snapshot)

    @precondition(lambda self: len(self.lines) > 1)
    @rule(data=st.data())
    def delete_branch(self, data: st.DataObject) -> None:
        """Delete a branch, unless a tag or another branch needs it."""
        branch, side = self.branch(data), self.side(data)
        if branch == "main":
            return
        COUNTED["delete branch"] += 1
        needed = any(tagged == branch for tagged, _ in self.tags.values())
        needed = needed or any(line.parent == branch for line in self.lines.values())
        try:
            side.delete_branch(branch)
        except (ConflictError, *TOO_LATE):
            assert needed
            self.settle(branch, self.lines[branch].head)
            return
        assert not needed
        del self.lines[branch]
        self.handles = [handle for handle in self.handles if handle[0] != branch]
        self.drafts = [draft for draft in self.drafts if draft[0] != branch]
        for other in self.lines:
            self.look_at(other, self.lines[other].number)

    @precondition(lambda self: len(self.lines) < MOST_BRANCHES)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        """Fork, write and merge a branch as a run does, while main moves on."""
        number, name = self.lines["main"].number, self.new_name("b")
        self.package.create_branch(name, "main", number)
        self.lines[name] = Line({number: self.lines["main"].head}, "main")
        for branch, kinds in ((name, WITHOUT_MOVES), (name, WITHOUT_MOVES), ("main", KINDS)):
            head = self.lines[branch].head
            if data.draw(st.booleans(), label="do"):
                work = self.work(data, head, kinds)
                self.commit("on a run", branch, lambda: work.do(self.package, branch), *work.outcomes(head))  # noqa: B023
        self.join(name, "main")

    @precondition(lambda self: len(self.lines) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        """Merge any branch into any other, in any direction."""
        source, dest = self.branch(data), self.branch(data)
        if source != dest:
            self.join(source, dest)

    def join(self, source: str, dest: str) -> None:
        """Merge two branches, or check that a refusal changes nothing; `merging/` has branches with other columns."""
        if self.lines[source].head.columns != self.lines[dest].head.columns:
            return
        before = {path for path in self.folder.rglob("*") if path.is_file()}
        try:
            self.package.merge(source, dest)
        except (MergeConflictError, VersionNotFoundError):
            # The second error is allowed because the merge base may be cleaned up.
            COUNTED["merge refused"] += 1
            assert before == {path for path in self.folder.rglob("*") if path.is_file()}
            return
        COUNTED["merge"] += 1
        dataset = self.opened(dest)
        source_head, dest_head = self.lines[source].head, self.lines[dest].head
        for found, on_source, on_dest in (
            (dataset.config(), source_head.config, dest_head.config),
            (described(dataset), source_head.metadata, dest_head.metadata),
        ):
            for key in {*found, *on_source, *on_dest}:
                assert found.get(key) in (on_source.get(key), on_dest.get(key))
        names = [KEY, *(column.name for column in dest_head.columns)]
        rows = zip(*dataset.to_table(columns=names).to_pydict().values(), strict=True)
        values = {row[0]: row[1:] for row in rows}
        after = merged(source_head, dest_head, values) if dataset.version > self.lines[dest].number else dest_head
        # An index that one side dropped since the fork is dropped on the other one.
        known = {**source_head.indices, **dest_head.indices}
        indices = {index.name: known[index.name] for index in dataset.describe_indices()}
        assert source_head.indices.keys() & dest_head.indices.keys() <= indices.keys()
        self.settle(dest, replace(after, config=dataset.config(), metadata=described(dataset), indices=indices))

    @rule(data=st.data())
    def keep_a_handle(self, data: st.DataObject) -> None:
        """Open the table with pylance, and keep the handle for a later step."""
        COUNTED["keep a handle"] += 1
        branch = self.branch(data)
        self.handles.append((branch, self.lines[branch].head, self.opened(branch)))

    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        """Prepare a transaction of the package for a later step."""
        COUNTED["prepare"] += 1
        branch = self.branch(data)
        work = self.any_work(data, self.lines[branch].head, KINDS)
        transaction = prepared(self.uri, branch, lambda writer: work.do(writer, branch))
        if transaction is not None:
            self.drafts.append((branch, work, transaction))
        self.settle(branch, self.lines[branch].head)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def come_late(self, data: st.DataObject) -> None:
        """Let pylance write through a handle that was opened in an earlier step."""
        branch, seen, dataset = self.handles.pop(data.draw(st.integers(0, len(self.handles) - 1), label="handle"))
        if any(self.lines[branch].head.column(column.token) is None for column in seen.columns):
            # Pylance reuses the id of a dropped column, so values that were written for it appear in the new column.
            return
        work = self.any_work(data, seen, BY_BOTH)
        late = PylanceWriter(lambda _: dataset)
        outcomes = work.outcomes(self.lines[branch].head)
        # Pylance commits an append of an old handle after a cast, and then reads the values of the old type as null.
        outcomes += [outcome.blind() for outcome in outcomes]
        self.attempt(f"late {work.kind}", branch, lambda: work.do(late, branch), outcomes)

    @precondition(lambda self: self.drafts)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        """Commit a transaction prepared earlier."""
        branch, work, transaction = self.drafts.pop(data.draw(st.integers(0, len(self.drafts) - 1), label="draft"))
        head = self.lines[branch].head
        self.attempt(
            f"resumed {work.kind}", branch, lambda: self.package.resume(branch, transaction), work.outcomes(head)
        )

    @rule(data=st.data())
    def race(self, data: st.DataObject) -> None:
        """Let pylance commit between the package's read of the table and its commit."""
        branch = self.branch(data)
        line = self.lines[branch]
        head = line.head
        own, other = self.any_work(data, head, KINDS), self.any_work(data, head, BY_BOTH)
        between = other.outcomes(head)[0]

        def intrude() -> None:
            other.do(self.pylance, branch)
            self.settle(branch, between)

        script = intruder_at_commit(intrude)
        racing = PackageWriter(lambda: LanceTable(context_on(ScriptedStore(open_store(self.uri), script))))
        try:
            own.do(racing, branch)
        except (ConflictError, InvalidInputError):
            COUNTED[f"race {own.kind} refused"] += 1
            self.settle(branch, line.head)
        else:
            COUNTED[f"race {own.kind}"] += 1
            self.settle(branch, *own.outcomes(line.head))


@pytest.mark.scaled
@pytest.mark.slow
@pytest.mark.parametrize("part", range(max(1, FACTOR)))
def test_both_do_to_one_table_what_the_model_says(part: int, record_property: Callable[[str, object], None]) -> None:
    """Both programs read what the model says after any steps; in a soak the steps have known seeds."""
    before = Counter(COUNTED)

    class Histories(Together):
        """A separate class, because the seed is stored on the class."""

    machine = seed(FIRST_SEED + part)(Histories) if FACTOR else Histories
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=HISTORIES,
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
        ),
    )
    for kind, times in (COUNTED - before).items():
        record_property(kind, times)
