"""Readers always see the rows that a plain model of "audited and published" predicts."""

import random
from itertools import product
from pathlib import Path

import dagster as dg
import pytest

from tests import soak
from tests.plugin.random_days import Kind, Team, live

pytestmark = pytest.mark.slow

HISTORIES = soak.examples(1)
# Without a repository one kind is enough: the kinds differ in what they write, which is published in the same way.
ROOTS = soak.thinned(
    product(["lake", "repository"], ["append", "overwrite", "replace"]),
    kept={("repository", "append"), ("repository", "overwrite"), ("lake", "replace")}.__contains__,
    label="-".join,
)


@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.parametrize("root,kind", ROOTS)
def test_readers_see_what_was_audited(
    tmp_path: Path, stored_instance: dg.DagsterInstance, root: str, kind: Kind, seed: int
) -> None:
    """Readers see only audited rows through ten random runs, kills, foreign commits, rollbacks and holds."""
    chance = random.Random(f"{kind} {seed} {root}")
    tags = chance.choice([("production",), ("production", "gold")])
    team = Team(root=str(tmp_path / root), kind=kind, instance=stored_instance, random=chance, tags=tags)
    live(team, 10)
