"""Read the properties that the plugin wrote to commits.

Any program can write a commit with properties of the same names, so each value is checked. On a run branch a value of
another form is refused; on `main` it counts as absent, because no commit of `main` can be discarded.
"""

import reprlib
from contextlib import suppress
from typing import TYPE_CHECKING, TypeGuard

from lance_dagster.errors import FormatError
from lance_dagster.format.layout import MAIN
from lance_dagster.format.validation import parsed_json
from lance_dagster.plugin import metadata as md

if TYPE_CHECKING:
    from lance_dagster.history.versions import Version
    from lance_dagster.table import LanceTable


def sources_of(version: "Version") -> list[str]:
    """Return the versions of run branches that a commit of `main` published, as refs."""
    merged = strings_on_main(version, md.SOURCES)
    # A merge of one branch names the audited version, or has it as its second parent.
    audited = version.properties.get(md.AUDITED_VERSION)
    return [*merged, *([audited] if audited is not None else version.parents[1:])]


def has_source(table: "LanceTable", branch: str) -> bool:
    """Return whether a commit of `main` has what was on a branch: a person may have merged and deleted the branch."""
    return any(source.startswith(f"{branch}@") for version in table.log(MAIN) for source in sources_of(version))


def runs_of(version: "Version") -> list[str]:
    """Return the runs whose rows a commit of `main` published; a merge of several runs names them in a list."""
    own = [version.properties[md.RUN_ID]] if md.RUN_ID in version.properties else []
    return [*own, *strings_on_main(version, md.PUBLISHED_RUNS)]


def strings_of(version: "Version", key: str) -> list[str]:
    """Return the strings of a property of a commit that is a JSON list; empty without the property.

    Raises:
        FormatError: The property has another form, so another program wrote it.
    """
    return _strings(_decoded(version, key, "[]"), version, key)


def strings_on_main(version: "Version", key: str) -> list[str]:
    """Return what `strings_of` returns, and nothing for a value that another program wrote to a commit of `main`."""
    with suppress(FormatError):
        return strings_of(version, key)
    return []


def string_lists_of(version: "Version", key: str) -> dict[str, list[str]]:
    """Return the lists of strings of a property of a commit that is a JSON object; empty without the property.

    Raises:
        FormatError: The property is something else, so another program wrote it.
    """
    decoded = _decoded(version, key, "{}")
    if not isinstance(decoded, dict):
        raise foreign_value(version, key)
    return {name: _strings(value, version, key) for name, value in decoded.items()}


def _decoded(version: "Version", key: str, default: str) -> object:
    try:
        return parsed_json(version.properties.get(key, default))
    except ValueError:
        raise foreign_value(version, key) from None


def _strings(decoded: object, version: "Version", key: str) -> list[str]:
    if not are_strings(decoded):
        raise foreign_value(version, key)
    return decoded


def are_strings(decoded: object) -> TypeGuard[list[str]]:
    """Return whether a parsed value is a list of strings."""
    return isinstance(decoded, list) and all(isinstance(value, str) for value in decoded)


def foreign_value(version: "Version", key: str) -> FormatError:
    """Return the error for a property of a commit with a value that the plugin does not write."""
    return FormatError(
        f"{version} has the property {key!r} with the value {reprlib.repr(version.properties[key])}, which the plugin "
        f"does not write, so another program did; to go on without these rows, run the publisher with the config "
        f"discard: {version.branch} and a reason"
    )
