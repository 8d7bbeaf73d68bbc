"""What the methods of a table have in common, by whatever topic they are grouped."""

from collections.abc import Mapping

from lance_dagster.history.context import Parts
from lance_dagster.history.versions import State, Version


class Facade:
    """The parts of a table, and how a version is described."""

    def __init__(self, parts: Parts) -> None:
        """Wrap the parts of a table."""
        self._parts = parts

    @property
    def uri(self) -> str:
        """The table's canonical URI: base paths are stored in this spelling, so maintenance should use it too."""
        return self._parts.uri

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The credentials and endpoint given; secret."""
        return self._parts.storage_options

    def _described(self, state: State) -> Version:
        return self._parts.versions.describe(state)
