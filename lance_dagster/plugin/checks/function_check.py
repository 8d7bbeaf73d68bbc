"""A table check that is a function of the user."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.plugin.checks.table_check import Audit, CheckOutcome, Scope

CheckFunction = Callable[..., bool | CheckOutcome | dg.AssetCheckResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCheck:
    """A check that calls a user's function with the candidate and with the tables that the check reads, in order."""

    name: str
    description: str
    scope: Scope
    reads: tuple[dg.AssetKey, ...]
    function: CheckFunction
    row_wise: bool = False

    def __post_init__(self) -> None:
        """Validate that the function takes the candidate and each table that the check reads."""
        try:
            # Bound by position, since the parameters may have any names.
            inspect.signature(self.function).bind(*range(1 + len(self.reads)))
        except TypeError as error:
            reads = ", ".join(key.to_user_string() for key in self.reads)
            raise InvalidInputError(
                f"table check {self.name!r} must take {1 + len(self.reads)} PinnedTable arguments: the candidate"
                f"{f', then {reads}' if reads else ' and nothing else'} ({error})"
            ) from None

    def evaluate(self, audit: Audit) -> CheckOutcome:
        """Call the function.

        Raises:
            InvalidInputError: The function returns neither a bool nor a result of a check, or that of another check.
        """
        found = self.function(audit.candidate, *(audit.others[key] for key in self.reads))
        match found:
            case CheckOutcome(passed=bool()):
                return found
            case CheckOutcome():
                raise self._not_a_bool("a CheckOutcome whose passed is", found.passed)
            case bool():
                return CheckOutcome(passed=found)
            case dg.AssetCheckResult():
                return self._outcome_of(found)
        raise self._not_a_bool("", found)

    def _outcome_of(self, found: dg.AssetCheckResult) -> CheckOutcome:
        # Dagster refuses such a result of a plain check; here it would count for this check, whatever it was about.
        if found.check_name not in (None, self.name):
            raise InvalidInputError(
                f"table check {self.name!r} returned the result of check {found.check_name!r}; leave check_name out"
            )
        return CheckOutcome(
            passed=found.passed,
            description=found.description or "",
            counts=found.metadata or {},
            severity=found.severity,
        )

    def _not_a_bool(self, where: str, found: object) -> InvalidInputError:
        # The scalars of numpy are named like Python's types.
        module, name = type(found).__module__, type(found).__qualname__
        kind = name if module == "builtins" else f"{module}.{name}"
        hint = ", as by bool(...)" if name.startswith("bool") else ""
        return InvalidInputError(
            f"table check {self.name!r} returned {f'{where} ' if where else ''}{kind}; return a bool or a CheckOutcome"
            f"{hint}"
        )
