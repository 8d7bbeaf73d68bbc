"""`repository.tags`: release tags, which the tables follow with immutable tags of their own."""

from dataclasses import dataclass

from lance_dagster.repository.commits.release_tags import ReleaseTag, create_release, delete_release, list_tags
from lance_dagster.repository.projection import FollowingTag, Lagging, project
from lance_dagster.repository.repository_context import RepositoryContext


@dataclass(frozen=True, slots=True)
class Releases:
    """The release tags of one repository."""

    _repository: RepositoryContext

    def list(self) -> dict[str, ReleaseTag]:
        """Read all release tags, by name."""
        return list_tags(self._repository.logs)

    def create(self, name: str, at: str = "main", *, message: str = "") -> tuple[ReleaseTag, tuple[Lagging, ...]]:
        """Name a commit permanently, in the repository and by an immutable tag in each of its tables.

        Raises:
            AlreadyExistsError: The tag names another commit, or a branch or channel has the name.
        """
        commit = self._repository.resolve(at)
        # The tag of the repository comes first and is one put: of two processes that want different commits, one is
        # refused here, before it touches the tables.
        tag = create_release(self._repository.logs, name, commit.id, message=message)
        following = FollowingTag(name=name, immutable=True)
        return tag, project(self._repository.registry, commit, commit.tables, tag=following, options=None)

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a release tag of the repository; the tags of the tables stay.

        Raises:
            RefNotFoundError: There is no such tag.
            ProtectedError: `force` is False.
        """
        delete_release(self._repository.logs, name, force=force)
