"""Repositories of many tables that are committed, published and promoted together, using only object storage."""

from lance_dagster.repository.repository import LanceRepository as LanceRepository
