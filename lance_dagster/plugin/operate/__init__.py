"""Sensors and jobs for the daily operation of tables."""
