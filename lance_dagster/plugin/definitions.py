"""Definitions as a whole: `validate_definitions` refuses what cannot work."""

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin.definition_findings import Findings


def validate_definitions(defs: dg.Definitions) -> dg.Definitions:
    """Return definitions as they are, or refuse them with everything that is wrong with them.

    Call it where the code location makes its `Definitions`, so that a mistake is found when they are loaded and not in
    a run. It reads no table and no environment variable.

    Refused are: metadata of assets and inputs that is misspelt, unknown or in the wrong place; several assets on one
    table, and tables outside of the root; partitioned assets without `lance/partition_expr`, or whose runs would
    overwrite each other's partitions; publishers and checks that look for a table in another place than the one that
    its asset writes; publishers of tables without a blocking check, unless they have `unchecked=True`; and resources
    that are missing.

    Raises:
        InvalidInputError: Something is wrong. The message has a line for each finding.

    Example:
        >>> defs = validate_definitions(dg.Definitions())
    """
    found = Findings(defs).all()
    if found:
        raise InvalidInputError("these definitions cannot work:\n" + "\n".join(f"- {one}" for one in found))
    return defs
