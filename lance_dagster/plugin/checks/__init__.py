"""Checks: functions of a table at a version, as Dagster's asset checks and for the publisher."""
