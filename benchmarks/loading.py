"""Measure the cost of loading a code location, compared with equivalent definitions with Dagster alone."""

import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import ms

ROUNDS = 15
# An asset, two blocking checks, an asset downstream of it, a resource and an IO manager, in both.
_PLAIN = """
import dagster as dg

@dg.asset(key_prefix="shop")
def orders(): ...

class Lake(dg.ConfigurableResource):
    root: str

class Manager(dg.ConfigurableIOManager):
    lake: dg.ResourceDependency[Lake]
    def handle_output(self, context, obj): ...
    def load_input(self, context): ...

class Publication(dg.Config):
    ref: str = ""
    reason: str = ""

@dg.multi_asset(specs=[dg.AssetSpec(["production", "shop", "orders"], deps=[orders])], can_subset=True, pool="publish")
def publisher(config: Publication, lake: Lake): ...

@dg.asset_check(asset=orders, blocking=True)
def row_count(lake: Lake): return dg.AssetCheckResult(passed=True)

@dg.asset_check(asset=orders, blocking=True)
def unique(lake: Lake): return dg.AssetCheckResult(passed=True)

lake = Lake(root="/lake")
defs = dg.Definitions(
    [orders, publisher],
    asset_checks=[row_count, unique],
    resources={"lake": lake, "io_manager": Manager(lake=lake)},
)
"""
_LANCE = """
import dagster as dg
import lance_dagster as ld

@dg.asset(key_prefix="shop")
def orders(): ...

lance = ld.LanceResource(root="/lake")
defs = ld.validate_definitions(dg.Definitions(
    [orders, ld.build_publisher([orders])],
    asset_checks=ld.build_table_checks(orders, [ld.RowCount(minimum=1), ld.Unique("id")]),
    resources={"lance": lance, "io_manager": ld.LanceIOManager(lance=lance)},
))
"""
_RESOLVE = "defs.resolve_all_asset_specs()\n"


def rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row for loading with the garbage collector of Python, and one without it."""
    for name, before in (("", ""), (", without garbage collection", "import gc; gc.disable()\n")):
        programs = {}
        for way, code in (("plain", _PLAIN), ("lance", _LANCE)):
            programs[way] = folder / f"{way}.py"
            programs[way].write_text(before + code + _RESOLVE)
            # The first one compiles the modules.
            _processor_time(programs[way])
        taken: dict[str, list[float]] = {way: [] for way in programs}
        for _ in range(ROUNDS):
            for way, program in programs.items():
                taken[way].append(_processor_time(program))
        plain, lance = (statistics.median(taken[way]) for way in ("plain", "lance"))
        # The median of pairs, since a machine that slows down slows both of a pair.
        more = statistics.median(b / a - 1 for a, b in zip(taken["plain"], taken["lance"], strict=True))
        yield f"a code location{name}", ms(plain), ms(lance), f"{more:+.1%}"


def _processor_time(program: Path) -> float:
    """Run a program in a process of its own, and return the processor time that it took, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Bytecode is kept, as in an installation; only the program itself is compiled each time.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = variables | {"PYTHONPATH": str(Path.cwd())}
    subprocess.run([sys.executable, str(program)], check=True, env=environment)  # noqa: S603
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
