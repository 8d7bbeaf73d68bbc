"""Sensors and jobs that operate tables from day to day."""
