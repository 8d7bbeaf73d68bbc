"""Connect Dagster to Lance tables: run branches, checks of them, a publisher that merges them, and sensors.

No module that definitions import needs pyarrow or the format before a run: the step imports the modules that write,
read, merge and evaluate.
"""

from dagster_shared.libraries import DagsterLibraryRegistry

from lance_dagster.__about__ import __version__

DagsterLibraryRegistry.register("lance-dagster", __version__, is_dagster_package=False)
