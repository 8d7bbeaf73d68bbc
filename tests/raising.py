"""Assertions on what an error is about, by its class and its fields; `test_errors.py` has the texts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from lance_dagster.errors import LanceDagsterError

_Error = TypeVar("_Error", bound=LanceDagsterError)


@contextmanager
def raises(error: type[_Error], /, **fields: object) -> Iterator[pytest.ExceptionInfo[_Error]]:
    """Assert that the block raises an error of a class, and that its fields have these values; yield what is caught.

    Example:
        >>> from lance_dagster.errors import RefNotFoundError
        >>> with raises(RefNotFoundError, kind="tag", ref="v1"):
        ...     raise RefNotFoundError("v1", ("v2",), "/lake/t", "tag")
    """
    with pytest.raises(error) as caught:
        yield caught
    assert fields == {name: getattr(caught.value, name) for name in fields}
