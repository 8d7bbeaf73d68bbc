"""Bring rows of a conflict together that have the same key, where nothing else tells that they are the same row.

A side that replaced rows took some out and put others in; a table without stable row ids does not say which row an
update made of which. A key does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lance_dagster.changes.diff_rows import Places, paired_by_values
from lance_dagster.changes.diff_values import ComparedColumn
from lance_dagster.changes.merge.images import ABSENT, BASE, CHANGED, DEST, REMOVED, REWRITTEN, SOURCE, Images
from lance_dagster.datafiles import Positions
from lance_dagster.table.comparing import keys_of
from lance_dagster.table.versioned_rows import VersionedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """How rows are known: the columns of the key, as the source has them beside the merge base, and as the dest has.

    `put_in` returns where all rows lie that a side put in.
    """

    versions: Sequence[VersionedRows]
    columns: tuple[tuple[ComparedColumn, ...], tuple[ComparedColumn, ...]]
    put_in: "Callable[[int], Positions]"

    def applied(self, images: Images) -> Images:
        """Return the rows of a conflict, each key once.

        Raises:
            InvalidInputError: Two rows of one version have the same key.
        """
        for side in (SOURCE, DEST):
            images = self._with_base(images, side)
        return self._with_each_other(images)

    def _with_base(self, images: Images, side: int) -> Images:
        """Look for rows of the merge base that a side does not have among those it put in."""
        addresses, did = images.addresses.copy(), images.did.copy()
        missing = np.flatnonzero((addresses[:, BASE] != ABSENT) & (addresses[:, side] == ABSENT))
        alone = np.flatnonzero(_only(images, side))
        pool = addresses[alone, side]
        untold = did[missing, side - SOURCE] == REWRITTEN
        if untold.any():
            pool = np.concatenate([pool, np.setdiff1d(self.put_in(side), pool)])
        olds, news, unknown = self._paired((BASE, addresses[missing, BASE]), (side, pool), side)
        gone = np.ones(len(missing), np.bool_)
        gone[olds], gone[unknown] = False, False
        did[missing[gone & untold], side - SOURCE] = REMOVED
        addresses[missing[olds], side] = pool[news]
        did[missing[olds], side - SOURCE] = CHANGED
        return _without(Images(addresses=addresses, did=did, fields=images.fields), alone[news[news < len(alone)]])

    def _with_each_other(self, images: Images) -> Images:
        """Bring rows together that source and dest put in."""
        addresses, did = images.addresses.copy(), images.did.copy()
        mine, theirs = (np.flatnonzero(_only(images, side)) for side in (SOURCE, DEST))
        ours, others, _ = self._paired((SOURCE, addresses[mine, SOURCE]), (DEST, addresses[theirs, DEST]), DEST)
        addresses[mine[ours], DEST] = addresses[theirs[others], DEST]
        did[mine[ours], DEST - SOURCE] = did[theirs[others], DEST - SOURCE]
        return _without(Images(addresses=addresses, did=did, fields=images.fields), theirs[others])

    def _paired(
        self, one: tuple[int, Positions], other: tuple[int, Positions], side: int
    ) -> tuple[Places, Places, Places]:
        """Return the places of rows of two versions that have the same key, and those of the first without a key."""
        nothing: Places = np.empty(0, np.int64)
        if not len(one[1]) or not len(other[1]):
            return nothing, nothing, nothing
        (olds, old_null), (news, new_null) = (
            keys_of(
                self.versions[version],
                addresses.astype(np.uint64),
                self.columns[(side if version == BASE else version) - SOURCE],
            )
            for version, addresses in (one, other)
        )
        found = paired_by_values(olds[~old_null], news[~new_null])
        return np.flatnonzero(~old_null)[found.before], np.flatnonzero(~new_null)[found.after], np.flatnonzero(old_null)


def _only(images: Images, side: int) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Tell which rows only one side has."""
    there = images.addresses != ABSENT
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = there[:, side] & (there.sum(axis=1) == 1)
    return found


def _without(images: Images, places: Places) -> Images:
    kept = np.ones(len(images), np.bool_)
    kept[places] = False
    return images.at(kept)
