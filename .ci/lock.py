"""Turn pip's installation report into the lines of requirements.lock."""

import json
import sys
from pathlib import Path

HEADER = "# Written by `make lock` on Python 3.11: what the Makefile installs. Users are not bound by it."


def lines(report: dict[str, list[dict[str, dict[str, str]]]]) -> list[str]:
    """Name and release of everything pip would install, this package left out."""
    found = {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in report["install"]}
    return [f"{name}=={release}" for name, release in sorted(found.items()) if name != "lance-dagster"]


if __name__ == "__main__":
    sys.stdout.write("\n".join([HEADER, *lines(json.loads(Path(sys.argv[1]).read_text()))]) + "\n")
