"""The partitions that a write is about, and how the partitions of two writes compare. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionScope:
    """Some partitions of a table, or the whole table.

    Attributes:
        keys: The keys of the partitions; empty for the whole table.
        partitioning: What the keys mean; empty when it is unknown.
    """

    keys: frozenset[str]
    partitioning: str

    def is_comparable(self, scope: "PartitionScope") -> bool:
        """Return whether equal keys of both scopes mean the same rows; an unknown partitioning is taken for the other.

        Example: the day `2026-01-01` and an hour of that day are not comparable.
        """
        return len({self.partitioning, scope.partitioning} - {""}) <= 1

    def covers(self, scope: "PartitionScope") -> bool:
        """Return whether this scope has all rows of another scope."""
        return not self.keys or (bool(scope.keys) and self.is_comparable(scope) and scope.keys <= self.keys)

    def overlaps(self, scope: "PartitionScope") -> bool:
        """Return whether both scopes may have a row in common."""
        is_apart = bool(self.keys and scope.keys) and self.is_comparable(scope) and self.keys.isdisjoint(scope.keys)
        return not is_apart
