"""Values that callers give to be stored must be strings."""

import numpy as np
import pytest

from lance_dagster.errors import InvalidInputError
from lance_dagster.format.validation import (
    check_flag,
    check_string,
    check_string_mapping,
    require_sequence,
    string_list,
    validate_commit_info,
    whole_number,
)

HALF = "a\ud800b"


@pytest.mark.parametrize(
    "given,said",
    [
        (5, "the name has to be a string, not 5"),
        (None, "the name has to be a string, not None"),
        (b"main", "the name has to be a string, not b'main'"),
        (HALF, r"the name has '\ud800' at character 1, an unpaired surrogate that UTF-8 cannot encode"),
    ],
)
def test_what_is_no_text_is_refused(given: object, said: str) -> None:
    """The error says what the value is."""
    with pytest.raises(InvalidInputError) as caught:
        check_string("the name", given)
    assert said == str(caught.value)
    check_string("the name", "Ünï\N{GRINNING FACE}\n")


@pytest.mark.parametrize(
    "given,said",
    [
        (5, "properties have to be a mapping such as {'ticket': '77'}, not 5"),
        ([("a", "b")], "properties have to be a mapping such as {'ticket': '77'}, not [('a', 'b')]"),
        ({1: "a"}, "a key of the properties has to be a string, not 1"),
        ({"a": 1}, "'a' of the properties has to be a string, not 1"),
        ({"a": None}, "'a' of the properties has to be a string, not None"),
        (
            {"a": HALF},
            r"'a' of the properties has '\ud800' at character 1, an unpaired surrogate that UTF-8 cannot encode",
        ),
        (
            {HALF: "a"},
            r"a key of the properties has '\ud800' at character 1, an unpaired surrogate that UTF-8 cannot encode",
        ),
    ],
)
def test_what_is_no_mapping_of_texts_is_refused(given: object, said: str) -> None:
    """The error names the key."""
    with pytest.raises(InvalidInputError) as caught:
        check_string_mapping("properties", given)
    assert said == str(caught.value)
    with pytest.raises(InvalidInputError) as caught:
        validate_commit_info(None, given)
    assert said == str(caught.value)
    check_string_mapping("settings", {"a": None}, removing=True)


@pytest.mark.parametrize(
    "given,said",
    [
        ("main", "tags: must be a list such as ['v*'], not 'main'"),
        (b"main", "tags: must be a list such as ['v*'], not b'main'"),
        (5, "tags: must be a list such as ['v*'], not 5"),
        (["a", 5], "an element of tags has to be a string, not 5"),
        ([HALF], r"an element of tags has '\ud800' at character 1, an unpaired surrogate that UTF-8 cannot encode"),
    ],
)
def test_one_text_is_no_list_of_texts(given: object, said: str) -> None:
    """A list with other elements is refused too."""
    with pytest.raises(InvalidInputError) as caught:
        string_list("tags", given, "v*")
    assert said == str(caught.value)


def test_lists_of_texts_are_taken_as_they_come() -> None:
    """The order is kept, and an iterator is accepted."""
    assert ("b", "a") == string_list("tags", (each for each in "ba"), "v*") == string_list("tags", ["b", "a"], "v*")
    assert () == string_list("tags", [], "v*")
    require_sequence("tables", [5], "shop/orders")


@pytest.mark.parametrize("given", ["3", 3.0, True, None, 1, np.array([3, 4])])
def test_a_whole_number_is_no_text_and_not_less(given: object) -> None:
    """The error says the least number; numbers of numpy are numbers."""
    with pytest.raises(InvalidInputError, match=r"^steps has to be a whole number of 2 or more, not "):
        whole_number("steps", given, 2)
    assert (3, int) == (whole_number("steps", np.int64(3), 2), type(whole_number("steps", np.int64(3), 2)))


@pytest.mark.parametrize("given", [None, 0, 1, "False"])
def test_a_flag_is_a_boolean(given: object) -> None:
    """Nothing else counts as one."""
    with pytest.raises(InvalidInputError, match=r"^dry_run has to be True or False, not "):
        check_flag("dry_run", given)
    for right in (True, False):
        check_flag("dry_run", right)
