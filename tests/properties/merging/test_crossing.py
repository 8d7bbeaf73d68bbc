"""Random histories of three branches with crossing merges, picks, reverts, resets and compactions of either program."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.properties.merging.crossing import CrossingHistory
from tests.properties.merging.histories import FINDS
from tests.soak import FACTOR, FIRST_SEED, SEEDS

AT_ONCE = 250 if FACTOR else 20
MOST_NEEDLESS = 0.02
"""The share of merges that may be refused without need with stable row ids."""


@pytest.mark.scaled
@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, AT_ONCE))
def test_crossing_merges_follow_the_rules(
    tmp_path: Path, first: int, record_property: Callable[[str, object], None]
) -> None:
    """No merge doubles, loses or changes a row that the model does not, or misses a conflict."""
    done = Counter[str]()
    for seed in range(first, min(first + AT_ONCE, FIRST_SEED + SEEDS)):
        dice, folder = Random(seed), tmp_path / str(seed)
        folder.mkdir()
        history = CrossingHistory(folder=folder, dice=dice, stable=dice.random() < 0.7)
        try:
            history.run(dice.randint(10, 30))
        except FINDS as error:
            error.add_note("\n".join([f"seed {seed}, stable row ids: {history.stable}", *history.told]))
            raise
        done.update(history.done)
        # A history leaves some hundred files.
        shutil.rmtree(folder)
    for what, times in done.items():
        record_property(what, times)
    needless = done["merge refused without need, stable row ids"]
    assert needless <= max(2, MOST_NEEDLESS * done["merge"]), done
