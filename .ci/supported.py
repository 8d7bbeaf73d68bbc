"""Test with the oldest and the newest releases that pyproject.toml allows and with some between, and print them.

Each of the three has a virtual environment of its own. "oldest" pins the packages in `SHOWN` to their floors; what
these need in turn is the newest that fits, as a user who installs an old release today would get it.
"""

import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
# The parts that meet other packages: the plugin, Spark, and pylance over the same tables.
TESTS = ("tests/plugin", "tests/spark", "tests/compat", "tests/datafiles")
# Without protobuf and fsspec: their floors are below what Spark Connect and s3fs ask for, which are tested with them.
SHOWN = (
    "dagster",
    "dagster-shared",
    "dagster-webserver",
    "pyspark",
    "pylance",
    "pyarrow",
    "s3fs",
    "pendulum",
    "pandas",
)
# Where a release between the ends changed something that tests meet; everything else is the newest that fits.
BETWEEN = (
    "dagster==1.13.15",
    "dagster-shared==1.13.15",
    "dagster-webserver==1.13.15",
    "pandas==2.3.3",
    "pyarrow==23.0.0",
)


def floors() -> Iterator[str]:
    """Yield `name==version` for every package that is tested at its floor."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # Tools of the project run in one release; only what users install has two ends.
    wanted = [*project["dependencies"], *(line for name, lines in extras.items() if name != "dev" for line in lines)]
    for requirement in map(Requirement, wanted):
        if requirement.name in SHOWN:
            yield from (f"{requirement.name}=={one.version}" for one in requirement.specifier if one.operator == ">=")


def prepared(end: str, constraints: list[str]) -> Path:
    """Make a virtual environment with the checkout in it, and return its Python."""
    folder = ROOT / ".venv" / "supported" / end
    venv.create(folder, with_pip=True, clear=True)
    listed = folder / "constraints.txt"
    listed.write_text("\n".join(constraints) + "\n")
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--constraint", listed]
    subprocess.run([*pip, "--editable", f"{ROOT}[dev]"], check=True)
    return python


def installed(python: Path) -> dict[str, str]:
    """Return the releases in an environment, by canonical name."""
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"], check=True, capture_output=True, text=True
    )
    pairs = (line.partition("==") for line in listed.stdout.splitlines())
    return {canonicalize_name(name): version for name, _, version in pairs}


def main(arguments: list[str]) -> int:
    """Test both ends and one between, and return how many of the three failed."""
    failed = 0
    for end, constraints in (("oldest", sorted(set(floors()))), ("between", [*BETWEEN]), ("newest", [])):
        python = prepared(end, constraints)
        found = installed(python)
        print(f"{end}: " + ", ".join(f"{name} {found.get(name, 'missing')}" for name in SHOWN), flush=True)
        command = [python, "-m", "pytest", "-q", "-n", "auto", *(arguments or TESTS)]
        tests = subprocess.run(command, cwd=ROOT, check=False)
        failed += tests.returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
