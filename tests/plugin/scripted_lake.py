"""A lake whose repository passes every storage request to a script."""

from typing import ClassVar

from lance_dagster import LanceRepository, LanceResource
from tests.repository.scripted_repository import scripted
from tests.store.scripted import Script


class ScriptedLake(LanceResource):
    """A resource that asks the newest script of the class about each request to the repository and its tables."""

    # The scripts are in a list, because a function that is an attribute of a class becomes a method.
    scripts: ClassVar[list[Script]] = []

    def open_repository(self) -> LanceRepository | None:
        """Open the repository anew."""
        return scripted(self.root, self.scripts[-1])
