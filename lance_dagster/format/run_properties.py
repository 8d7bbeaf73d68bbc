"""The properties of commits, and of branches, by which runs of Dagster say who wrote what.

Releases read what earlier releases wrote, so a name never changes.
"""

RUN_ID = "dagster/run_id"
ROOT_RUN_ID = "dagster/root_run_id"
BACKFILL_ID = "dagster/backfill"
PUBLISHED_BY = "dagster/published_by"
ASSET_KEY = "dagster/asset_key"
"""Only the commit with the rows of an output has it, and not the commits that prepare the table for the rows."""
OP_OUTPUT = "op output "
"""How the value of `ASSET_KEY` begins where ops write the table, and not an asset."""
OUTPUT = "dagster/output"
STEP_KEY = "dagster/step_key"
PARTITION_KEYS = "dagster/partition_keys"
PARTITIONING = "dagster/partitioning"
"""What the partition keys of a commit mean, as text: the same key of another partitioning stands for other rows."""
WRITE = "dagster/write"
"""The mode of a write and its number among the writes of one external process, such as `append 2`."""
