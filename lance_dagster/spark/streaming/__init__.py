"""Lance tables as sources and sinks of Spark's structured streams."""
