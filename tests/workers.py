"""Decide which tests run on one worker when the suite runs in parallel.

Tests of one group share something that costs seconds to make: the Spark session, or a fixture of their module. All of
a group run on one worker, in their order. Every other test goes to the next worker that is free.
"""

from xdist.scheduler import LoadScopeScheduling

GROUPS = {
    "tests/examples/test_features.py": "spark",
    "tests/plugin/test_io_manager.py": "spark",
    "tests/plugin/test_resource.py": "spark",
    "tests/plugin/test_spark_inputs.py": "spark",
    "tests/plugin/test_spark_outputs.py": "spark",
    "tests/spark/test_spark_compaction.py": "spark",
    "tests/spark/test_change_rows.py": "spark",
    "tests/spark/test_executors.py": "spark",
    "tests/spark/test_keyed_rows.py": "spark",
    "tests/spark/test_landed_commits.py": "spark",
    "tests/spark/test_names.py": "spark",
    "tests/spark/test_user_types.py": "spark",
    "tests/spark/test_narrowing.py": "spark",
    "tests/spark/test_reader.py": "spark",
    "tests/spark/test_save.py": "spark",
    "tests/spark/test_session.py": "spark",
    "tests/spark/test_source.py": "spark",
    "tests/spark/test_types.py": "spark",
    "tests/spark/test_worker.py": "spark",
    "tests/spark/test_writer.py": "spark",
    "tests/spark/streaming/test_stream_sink.py": "spark",
    "tests/cli/test_reference.py": "reference of the command",
    "tests/compat/test_conflicts.py": "conflicts with pylance",
    "tests/compat/test_indices_of_changed_rows.py": "indices of changed rows",
    "tests/compat/test_indices_survive.py": "indices",
    "tests/examples/test_demo.py": "demo",
    "tests/faults/test_corrupt.py": "damaged files",
    "tests/plugin/test_browser.py": "browser",
    "tests/plugin/test_web_ui.py": "web UI",
    "tests/test_source.py": "source of the project",
}


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Hand out groups as a whole, the largest first, then every other test on its own."""

    # The mark `xdist_group` would say the same in each module, but pytest-xdist 3.8 does not see it with pytest 9.2.
    def _split_scope(self, nodeid: str) -> str:
        return GROUPS.get(nodeid.partition("::")[0], nodeid)
