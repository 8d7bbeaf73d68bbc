"""Put rows into a table and take rows out: the methods of a table that change rows."""

from collections.abc import Mapping, Sequence
from typing import Unpack

from lance_dagster.edit import row_edits, write
from lance_dagster.edit.upsert import Rules, When, upsert
from lance_dagster.edit.write import Note, Rows
from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import Transaction
from lance_dagster.format.validation import string_list
from lance_dagster.history.commit import commit_transaction
from lance_dagster.history.versions import Version
from lance_dagster.table.facade import Facade


class Editing(Facade):
    """Each method makes one version, atomically."""

    def append(
        self,
        data: Rows,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        partitions: Sequence[str] = (),
        replaces: Version | None = None,
    ) -> Version:
        """Add rows.

        Args:
            data: Arrow rows, or data files that are already staged.
            branch: The branch to commit to.
            message: What to say in the log.
            properties: Kept with the transaction.
            partitions: The partition keys the rows belong to. A merge compares them with what others claim.
            replaces: A version an earlier attempt of the same work made; the fragments it added are taken out in
                the same commit, so that a retry leaves no row twice.

        Raises:
            SchemaMismatchError: The rows do not fit the table; nothing was written.
            CommitConflictError: A commit that got in between replaced the table.
        """
        note = _note(branch, message, properties, partitions)
        return self._described(write.append(self._parts, data, note, replaces))

    def overwrite(
        self,
        data: Rows,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        partitions: Sequence[str] = (),
    ) -> Version:
        """Replace all rows, and the schema where the new rows do not fit the old one.

        Raises:
            CommitConflictError: Somebody else replaced the table meanwhile.
        """
        note = _note(branch, message, properties, partitions)
        return self._described(write.overwrite(self._parts, data, note))

    def replace_where(
        self,
        predicate: str,
        data: Rows,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        partitions: Sequence[str] = (),
    ) -> Version:
        """Take out the rows that match a condition and put others in, as one version.

        The new rows are not tested against the condition. A merge refuses when another branch replaced rows of the
        same partitions, or put rows there.

        Raises:
            SchemaMismatchError: The rows do not fit the table; nothing was written.
            InvalidInputError: The condition cannot be understood.
        """
        note = _note(branch, message, properties, partitions)
        return self._described(write.replace_where(self._parts, predicate, data, note))

    def delete(
        self,
        predicate: str,
        *,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Version:
        """Take out the rows that match a condition.

        When another commit touches the same fragments meanwhile, the rows are looked up again.

        Args:
            predicate: A condition in Lance SQL, such as `"distance > 100"`; `"true"` takes out every row.
            branch: The branch to commit to.
            message: What to say in the log.
            properties: Kept with the transaction.

        Returns:
            The version without the rows; the newest one as it is when no row matches, where pylance would make a
            version that changes nothing.

        Raises:
            InvalidInputError: The condition cannot be understood.
            CommitConflictError: Others replaced the table, or changed the same fragments again and again.
        """
        note = Note(branch=branch, message=message, properties=properties or {})
        return self._described(row_edits.delete(self._parts, predicate, note))

    def update(
        self,
        values: Mapping[str, str],
        *,
        where: str | None = None,
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Version:
        """Give the rows that match a condition new values.

        Rows keep their ids and the version they were created at, on a table with stable row ids. When another commit
        touches the same rows meanwhile, the values are computed again from what it left.

        Args:
            values: An expression in Lance SQL for each column that changes, over the values before the update:
                `{"price": "price * 2", "currency": "'EUR'"}`. Values are converted to the column's type where that
                can be done for each of them.
            where: The condition; None for every row.
            branch: The branch to commit to.
            message: What to say in the log.
            properties: Kept with the transaction.

        Returns:
            The version with the new values; the newest one as it is when no row matches.

        Raises:
            SchemaMismatchError: A value does not fit its column; nothing was committed.
            InvalidInputError: A column does not exist, an expression or the condition cannot be understood, or a
                column holds blobs inside.
            CommitConflictError: Others replaced the table, or changed the same rows again and again.
        """
        note = Note(branch=branch, message=message, properties=properties or {})
        return self._described(row_edits.update(self._parts, values, where, note))

    def upsert(
        self,
        data: Rows,
        *,
        on: Sequence[str],
        branch: str = MAIN,
        message: str | None = None,
        properties: Mapping[str, str] | None = None,
        partitions: Sequence[str] = (),
        **when: Unpack[When],
    ) -> Version:
        """Change the rows whose key is given, and add the given rows whose key is not there, as one version.

        Rows that change keep their ids and the version they were created at, on a table with stable row ids. A key
        with a null in it is equal to no other: a given row with one is always added. When several rows of the table
        have a key, all of them change. Of two writers that add the same key at the same time, the second one changes
        the row the first one added.

        Args:
            data: Arrow rows, held in memory. They may lack columns of the table: rows that change keep their values
                there, rows that are added get nulls.
            on: The columns of the key, of single values.
            branch: The branch to commit to.
            message: What to say in the log.
            properties: Kept with the transaction.
            partitions: The partition keys the rows belong to. A merge compares them with what others claim.
            **when: `when_matched`, what becomes of rows whose key is given: `"update"` (if left out), `"keep"`, or a
                condition in Lance SQL for an update, such as `"source.changed_at > target.changed_at"`.
                `when_not_matched`, what becomes of given rows whose key is not there: `"insert"` (if left out) or
                `"ignore"`. `when_missing`, what becomes of rows whose key is not given: `"keep"` (if left out) or
                `"delete"`.

        Returns:
            The version with the rows; the newest one as it is when nothing changes.

        Raises:
            InvalidInputError: A key is given twice or a key column is not there; the condition cannot be understood;
                a column holds blobs inside.
            SchemaMismatchError: The rows do not fit the table.
            CommitConflictError: Others replaced the table, or were faster again and again.
        """
        note = _note(branch, message, properties, partitions)
        return self._described(upsert(self._parts, data, on, rules=Rules.of(when), note=note))

    def commit(self, transaction: Transaction, *, branch: str = MAIN) -> Version:
        """Commit a transaction, or find the version it made when it landed before.

        Raises:
            CommitConflictError: A version committed since it read the table contradicts it.
            CommitStateUnknownError: It may or may not have landed; commit it again.
        """
        self._parts.head(branch)
        return self._described(commit_transaction(self._parts.versions, branch, transaction))


def _note(branch: str, message: str | None, properties: Mapping[str, str] | None, partitions: Sequence[str]) -> Note:
    keys = string_list("partitions", partitions, "2026-01-31")
    return Note(branch=branch, message=message, properties=properties or {}, partitions=keys)
