"""A lake whose repository sends every request through a script."""

from typing import ClassVar

from lance_dagster import LanceRepository, LanceResource
from tests.repository.scripted_repository import scripted
from tests.store.scripted import Script


class ScriptedLake(LanceResource):
    """The newest script of the class is asked about each request to the repository and its tables."""

    # In a list, since a function in a class becomes a method.
    scripts: ClassVar[list[Script]] = []

    def repository_there(self) -> LanceRepository | None:
        """Open the repository anew."""
        return scripted(self.root, self.scripts[-1])
