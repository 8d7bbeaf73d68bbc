"""Put rows into a table and take rows out: the methods of a table that change rows."""

from collections.abc import Mapping, Sequence

from lance_dagster.format.layout import MAIN
from lance_dagster.format.transaction import Transaction
from lance_dagster.history.commit import commit_transaction
from lance_dagster.history.versions import Version
from lance_dagster.table import write
from lance_dagster.table.facade import Facade
from lance_dagster.table.write import Note, Rows


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
        note = Note(branch=branch, message=message, properties=properties or {}, partitions=partitions)
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
        note = Note(branch=branch, message=message, properties=properties or {}, partitions=partitions)
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
        note = Note(branch=branch, message=message, properties=properties or {}, partitions=partitions)
        return self._described(write.replace_where(self._parts, predicate, data, note))

    def commit(self, transaction: Transaction, *, branch: str = MAIN) -> Version:
        """Commit a transaction, or find the version it made when it landed before.

        Raises:
            CommitConflictError: A version committed since it read the table contradicts it.
            CommitStateUnknownError: It may or may not have landed; commit it again.
        """
        self._parts.head(branch)
        return self._described(commit_transaction(self._parts.versions, branch, transaction))
