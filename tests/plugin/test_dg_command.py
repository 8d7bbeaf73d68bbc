"""Dagster's `dg` finds the components of this package, makes their files, and says what is wrong with them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HOST, free_port, wait_for
from tests.plugin.shop import ORDERS_PY

pytestmark = pytest.mark.soak
HERE = Path(__file__).parents[2]
PROJECT = """
[project]
name = "shop_project"
version = "1"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop_project"
"""
DEFINITIONS = """
from pathlib import Path
from dagster import definitions, load_from_defs_folder
from lance_dagster import validate_definitions

@definitions
def defs():
    return validate_definitions(load_from_defs_folder(path_within_project=Path(__file__).parent))
"""
TABLES = """
type: lance_dagster.LanceTablesComponent
attributes:
  tables:
    - key: shop/orders
      checks: [{kind: unique, settings: {columns: [id]}}]
"""
MISSPELT = ORDERS_PY.replace("asset(", "asset(metadata={'lance/partition_exp': 'day'}, ")
LAKE = "type: lance_dagster.LanceResourceComponent\nattributes: {root: /data/lake}\n"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `dg`, installed in its own environment: it brings more packages than all tests together use."""
    folder = tmp_path_factory.mktemp("dg")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "this_environment.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    install = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*install, "--constraint", "requirements.lock", "--group", "dg"], cwd=HERE, check=True)
    return folder / "bin"


def test_dg_scaffolds_and_checks(commands: Path, tmp_path: Path) -> None:
    """Both checks of `dg` pass on scaffolded files of all components, and report what is wrong with an edited file.

    Misspelt metadata of an asset is found too, since `definitions.py` validates everything.
    """
    module = tmp_path / "src" / "shop_project"
    (module / "defs").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (module / "__init__.py").touch()
    (module / "definitions.py").write_text(DEFINITIONS)
    (module / "defs" / "orders.py").write_text(ORDERS_PY)

    def dg(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [commands / "dg", *arguments],
            cwd=tmp_path,
            # The command has its own home folder: it writes settings, and asks for telemetry once.
            env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": f"{HERE}:{tmp_path / 'src'}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    for component, name in (("Resource", "lake"), ("Tables", "tables"), ("Publisher", "publisher")):
        code, said = dg("scaffold", "defs", f"lance_dagster.Lance{component}Component", name)
        assert 0 == code, said
    for check in ("yaml", "defs"):
        code, said = dg("check", check)
        assert 0 == code, said
    (module / "defs" / "tables" / "defs.yaml").write_text(LAKE.replace("Resource", "Tables"))
    code, said = dg("check", "yaml")
    assert 1 == code, said
    assert "'tables' is a required property" in said
    (module / "defs" / "lake" / "defs.yaml").write_text(LAKE)
    (module / "defs" / "publisher" / "defs.yaml").unlink()
    (module / "defs" / "publisher").rmdir()
    (module / "defs" / "tables" / "defs.yaml").write_text(TABLES)
    for check in ("yaml", "defs"):
        code, said = dg("check", check)
        assert 0 == code, said
    (module / "defs" / "orders.py").write_text(MISSPELT)
    code, said = dg("check", "defs")
    assert 1 == code, said
    assert "there is no setting 'lance/partition_exp'; did you mean 'lance/partition_expr'?" in said


def test_dg_starts_the_file_of_the_quickstart(commands: Path, tmp_path: Path) -> None:
    """`dg dev -f shop.py` serves one file without a project, as the pages say."""
    file, log, port = tmp_path / "shop.py", tmp_path / "dev.log", free_port()
    file.write_text("import dagster as dg\nfrom lance_dagster import lance_assets\ndefs = dg.Definitions()\n")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [commands / "dg", "dev", "-f", file, "-h", HOST, "-p", str(port)],
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path), "DAGSTER_HOME": "", "PYTHONPATH": str(HERE)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_for(process, port, log)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            # Dagster sometimes waits for its code server for ever.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
