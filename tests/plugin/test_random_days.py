"""Readers always see the rows that a plain model of "audited and published" predicts."""

import random
from pathlib import Path

import dagster as dg
import pytest

from tests import soak
from tests.plugin.random_days import Kind, Team, live

pytestmark = pytest.mark.slow

HISTORIES = soak.examples(1)


@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.parametrize("kind", ["append", "overwrite", "replace"])
def test_readers_see_what_was_audited(
    tmp_path: Path, stored_instance: dg.DagsterInstance, kind: Kind, seed: int
) -> None:
    """Readers see only audited rows through ten random runs, kills, foreign commits, rollbacks and holds."""
    chance = random.Random(f"{kind} {seed}")
    tags = chance.choice([("production",), ("production", "gold")])
    team = Team(root=str(tmp_path / "lake"), kind=kind, instance=stored_instance, random=chance, tags=tags)
    live(team, 10)
