"""A Spark session for assets and for the IO manager."""

from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from lance_dagster.plugin.resource import check_fields

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Starts Spark when it is first asked for.

    Every step process has a session of its own, so with the multiprocess executor each step pays for the
    start. Jobs made of Spark assets run best with `dg.in_process_executor`.
    """

    master: str = Field(default="local[*]", description="Spark master URL.")
    app_name: str = Field(default="lance_dagster", description="Name of the application.")
    config: dict[str, str] = Field(default_factory=dict, description="Further Spark settings.")

    def __init__(self, **fields: object) -> None:
        """Refuse unknown fields where they are written."""
        check_fields(type(self), fields)
        super().__init__(**fields)

    @property
    def session(self) -> "SparkSession":
        """The session of this process, started when there is none."""
        from lance_dagster.spark import local_session

        return local_session(app_name=self.app_name, master=self.master, config=self.config)
