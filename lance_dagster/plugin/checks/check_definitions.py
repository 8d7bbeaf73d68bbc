"""Turn table checks into Dagster's asset checks: values with `build_table_checks`, functions with `table_check`."""

import inspect
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import dagster as dg

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.validation import require_sequence
from lance_dagster.plugin.checks.table_check import LANCE_CHECK, Audit, BoundCheck, CheckOutcome, Scope, TableCheck
from lance_dagster.plugin.resource import LanceResource
from lance_dagster.plugin.table_asset import RESOURCE_KEY, TableAsset, asset_key_of, spec_of

CheckFunction = Callable[..., bool | CheckOutcome | dg.AssetCheckResult]


def build_table_checks(
    asset: TableAsset, checks: Iterable[TableCheck], *, blocking: bool = True, resource_key: str = RESOURCE_KEY
) -> list[dg.AssetChecksDefinition]:
    """Build an asset check from each table check.

    A blocking check that fails stops the downstream assets in its run, and the publisher refuses the version in
    every run.

    Args:
        asset: The candidate, as its definition or its key. A key is enough where the asset's definition is in the
            same code location.
        checks: Table checks, such as `RowCount(minimum=1)`, or values of a class of your own.
        blocking: Whether a failure stops the downstream assets and the publisher.
        resource_key: The key of the `LanceResource`.

    Raises:
        InvalidInputError: Two checks have the same name, a value is not a check, or the asset is a definition of
            several assets.

    Examples:
        >>> from lance_dagster import RowCount
        >>> [check.check_key.name for check in build_table_checks("orders", [RowCount(minimum=1)])]
        ['row_count']
    """
    table_checks = require_checks(checks, asset_key_of(asset).to_user_string(), "[Unique('id')]")
    names = [check.name for check in table_checks]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        key = asset_key_of(asset).to_user_string()
        raise InvalidInputError(f"two checks of {key} are named {', '.join(doubled)}; give one of them another name")
    return [_build(asset, check, blocking=blocking, resource_key=resource_key) for check in table_checks]


def require_checks(checks: object, of: str, example: str) -> list[TableCheck]:
    """Return checks as a list, or refuse a value of another type, which would fail deep inside of Dagster.

    Raises:
        InvalidInputError: The value is not a list, or an element is not a check. The message names the asset as `of`.
    """
    if isinstance(checks, str | bytes | Mapping) or not isinstance(checks, Iterable):
        raise InvalidInputError(
            f"checks of {of!r} have to be a list of checks such as {example}, not {reprlib.repr(checks)}"
        )
    elements = list(checks)
    for element in elements:
        # A class has the attributes of its values.
        if isinstance(element, type) or not (hasattr(element, "name") and hasattr(element, "evaluate")):
            raise InvalidInputError(
                f"checks: {reprlib.repr(element)} for {of!r} is not a check; give one such as {example}, or a "
                "function with @table_check"
            )
    return elements


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
            InvalidInputError: The function returns neither a bool nor a result of a check, or the result of another
                check.
        """
        answer = self.function(audit.candidate, *(audit.others[key] for key in self.reads))
        match answer:
            case CheckOutcome(passed=bool()):
                return answer
            case CheckOutcome():
                raise self._not_a_bool("a CheckOutcome whose passed is", answer.passed)
            case bool():
                return CheckOutcome(passed=answer)
            case dg.AssetCheckResult():
                return self._outcome_of(answer)
        raise self._not_a_bool("", answer)

    def _outcome_of(self, result: dg.AssetCheckResult) -> CheckOutcome:
        # Dagster refuses such a result of a plain check; here it would count for this check, whatever it was about.
        if result.check_name not in (None, self.name):
            raise InvalidInputError(
                f"table check {self.name!r} returned the result of check {result.check_name!r}; leave check_name out"
            )
        return CheckOutcome(
            passed=result.passed,
            description=result.description or "",
            counts=result.metadata or {},
            severity=result.severity,
        )

    def _not_a_bool(self, where: str, answer: object) -> InvalidInputError:
        # The scalars of numpy are named like Python's types.
        module, name = type(answer).__module__, type(answer).__qualname__
        kind = name if module == "builtins" else f"{module}.{name}"
        hint = ", as by bool(...)" if name.startswith("bool") else ""
        return InvalidInputError(
            f"table check {self.name!r} returned {f'{where} ' if where else ''}{kind}; return a bool or a CheckOutcome"
            f"{hint}"
        )


def table_check(
    *misplaced: object,
    asset: TableAsset = (),
    name: str | None = None,
    scope: Scope = "partitions",
    reads: Sequence[TableAsset] = (),
    blocking: bool = True,
    resource_key: str = RESOURCE_KEY,
) -> Callable[[CheckFunction], dg.AssetChecksDefinition]:
    """Turn a function of a `PinnedTable` into an asset check that the publisher can evaluate again.

    The function gets the candidate's table at one version, and then each table of `reads` in that order. It returns
    a bool, a `CheckOutcome` or a `dg.AssetCheckResult`. Its docstring becomes the description of the check. It must
    read nothing else that the run wrote, since the publisher calls it again for another version of the table.

    Args:
        *misplaced: Nothing; the decorator has to be called with the asset.
        asset: The candidate, as its definition or its key.
        name: The name of the asset check; the name of the function if None.
        scope: `partitions`: in a run with partitions the table shows only their rows. `table`: it shows all rows.
        reads: The assets of further tables that the function takes. They are read as the run reads them: from
            their candidates if the same run wrote them.
        blocking: Whether a failure stops the downstream assets and the publisher.
        resource_key: The key of the `LanceResource`.

    Raises:
        InvalidInputError: The asset is missing, the function does not take as many tables, or the scope is unknown.

    Examples:
        >>> @table_check(asset="shop/orders")
        ... def has_no_test_orders(orders):
        ...     "No order was made by a test."
        ...     return orders.count_rows("customer = 'test'") == 0
        >>> has_no_test_orders.check_key.name
        'has_no_test_orders'
    """
    if misplaced:
        raise InvalidInputError("table_check takes the asset by its name: @table_check(asset='shop/orders')")
    asset_key_of(asset)
    require_sequence("reads", reads, "shop/customers")

    def decorate(function: CheckFunction) -> dg.AssetChecksDefinition:
        check = FunctionCheck(
            name=name or function.__name__,
            description=(function.__doc__ or "").strip(),
            scope=scope,
            reads=tuple(asset_key_of(table) for table in reads),
            function=function,
        )
        return _build(asset, check, blocking=blocking, resource_key=resource_key)

    return decorate


def _build(asset: TableAsset, check: TableCheck, *, blocking: bool, resource_key: str) -> dg.AssetChecksDefinition:
    # Checked here for objects of any class: a misspelled scope would otherwise silently count as `partitions`.
    if check.scope not in get_args(Scope):
        scopes = " or ".join(get_args(Scope))
        raise InvalidInputError(f"the scope of table check {check.name!r} is {check.scope!r}; give {scopes}")
    spec = spec_of(asset)
    key = spec.key
    bound = BoundCheck(check=check, asset=key, metadata=dict(spec.metadata), partitions_def=spec.partitions_def)

    def evaluate(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        # Imported only in a run, as all modules are that loading a code location does not need.
        from lance_dagster.plugin.branch_extent import partitions_of
        from lance_dagster.plugin.checks.evaluation import (
            evaluate_check,
            open_candidate,
            record_outcome,
            run_partitions,
        )

        lance: LanceResource = getattr(context.resources, resource_key)
        candidate = open_candidate(context, asset, resource_key=resource_key)
        partitioning = bound.described(context).partitioning
        keys = partitions_of(candidate.table, candidate.version, partitioning)
        keys = keys or run_partitions(context, bound, candidate)
        outcome = evaluate_check(bound, candidate, lance=lance, context=context, partition_keys=keys)
        record_outcome(lance, candidate, key=bound.check.name, outcome=outcome, run_id=context.run.run_id)
        return dg.AssetCheckResult(
            passed=outcome.passed,
            severity=outcome.severity,
            description=outcome.description,
            # The publisher compares this version with the version that it is about to publish.
            metadata={**outcome.counts, **candidate.metadata},
        )

    setattr(evaluate, LANCE_CHECK, bound)
    return dg.asset_check(
        asset=key,
        name=check.name,
        description=check.description,
        blocking=blocking,
        # The order of steps: a table that the same run writes must be written before the check reads it.
        # Dagster refuses the checked asset itself as an additional dependency.
        additional_deps=[dependency for dependency in dict.fromkeys(check.reads) if dependency != key],
        required_resource_keys={resource_key},
    )(evaluate)
