"""The errors of the package: their texts have one form, and each survives the way between processes.

Tests of features assert on the class and the fields of an error (`tests/raising.py`); what the texts say is here.
"""

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lance_dagster import errors
from lance_dagster.errors import (
    AlreadyExistsError,
    BasePathRefusedError,
    Call,
    CommitConflictError,
    CommitStateUnknownError,
    CorruptFileError,
    InvalidInputError,
    InvalidRefNameError,
    LanceDagsterError,
    MissingExtraError,
    PermissionRefusedError,
    ProtectedError,
    PublishRefusedError,
    RefMovedError,
    RefNotFoundError,
    RefSyntaxError,
    Remedy,
    UnsupportedFeatureError,
)
from tests import architecture

ROOT = Path(__file__).parent.parent
CLASSES = {name: item for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, Exception)}
# What has to be, what was instead, and what to do: each in the order in which a person asks.
TEXTS: list[tuple[LanceDagsterError, str]] = [
    (
        RefNotFoundError("run/71", ("main", "run/17"), "/lake/t", "branch"),
        "no branch 'run/71' in /lake/t; did you mean 'run/17'?",
    ),
    (
        RefNotFoundError("x", ("production", "main"), "/lake/t"),
        "no branch or tag 'x' in /lake/t; known names: main, production",
    ),
    (
        RefNotFoundError("0123456789abcdef", (), "/lake/t"),
        "no branch, tag or commit '0123456789abcdef' in /lake/t; known names: none",
    ),
    (
        RefNotFoundError("run", (), "/lake/t", "branch", "the branch is called 'new' now"),
        "no branch 'run' in /lake/t; the branch is called 'new' now",
    ),
    (
        MissingExtraError("s3fs", "s3", "a table on S3"),
        "a table on S3 needs s3fs, which is not installed: pip install 'lance-dagster[s3]'",
    ),
    (
        AlreadyExistsError(
            "tag 'v1' of /lake/t exists", remedy=Remedy("{} moves it", Call("tags.move", ("v1", "main")))
        ),
        "tag 'v1' of /lake/t exists; tags.move('v1', 'main') moves it",
    ),
    (
        InvalidRefNameError("tag", "main", "'main' is reserved for the main branch"),
        "'main' cannot name a tag: 'main' is reserved for the main branch",
    ),
    (
        RefSyntaxError("main~x", 5, "a number of steps"),
        "cannot read ref 'main~x' at character 5: expected a number of steps",
    ),
    (
        BasePathRefusedError("/lake/t", "/cold"),
        (
            "/lake/t names files at /cold, outside of the table, which is not allowed; if you trust the table "
            "with that "
            "place, open it with the storage option allowed_base_paths=/cold, or allow it for every reader by "
            "maintenance.allow_base('/cold'); if the table was moved, relocate it"
        ),
    ),
    (
        CommitConflictError("main@3 conflicts with main@2", "main@2", True),  # noqa: FBT003 - by position, as it is made
        "main@3 conflicts with main@2; read the table again and redo the change",
    ),
    (
        CommitConflictError("main@3 conflicts with main@2", "main@2", False),  # noqa: FBT003 - as above
        "main@3 conflicts with main@2; look at the other change first",
    ),
    (
        RefMovedError("production", "main@2", "main@3"),
        "'production' points to main@3, not to main@2: someone moved it meanwhile",
    ),
    (
        ProtectedError("tag", "v1", "move", "it was created to stay where it is", Remedy("create another tag")),
        "cannot move tag 'v1': it was created to stay where it is; create another tag",
    ),
    (
        PublishRefusedError("run/1 cannot be published", ["shop/orders has no audit", "shop/lines failed"]),
        "run/1 cannot be published\n  - shop/orders has no audit\n  - shop/lines failed",
    ),
    (
        PublishRefusedError("run/1 cannot be published", ["shop/lines failed"], Remedy("set discard: run/1")),
        "run/1 cannot be published\n  - shop/lines failed\nset discard: run/1",
    ),
    (CorruptFileError("/lake/t/data/a.lance", "it is cut"), "/lake/t/data/a.lance is damaged: it is cut"),
    (
        UnsupportedFeatureError("/lake/t/_versions/1.manifest", ["feature flag 64", "spilled row lineage"]),
        (
            "/lake/t/_versions/1.manifest uses features this release does not support: feature flag 64, spilled row "
            "lineage"
        ),
    ),
    (
        CommitStateUnknownError("cannot tell whether main@3 was committed", "4f2a", None),
        (
            "cannot tell whether main@3 was committed (transaction 4f2a); commit the same transaction again: it lands "
            "exactly once; delete nothing meanwhile"
        ),
    ),
    (
        PermissionRefusedError("write s3://lake/t", "AccessDenied"),
        (
            "the storage refused to write s3://lake/t: AccessDenied; the credentials need the permission to "
            "write there; "
            "otherwise leave this to a role that has it"
        ),
    ),
    (
        PermissionRefusedError("write /lake/t", "[Errno 30] Read-only file system"),
        (
            "the storage refused to write /lake/t: [Errno 30] Read-only file system; the file system is mounted "
            "read-only: "
            "mount it for writing, or write from where it is"
        ),
    ),
    (
        PermissionRefusedError("read s3://lake/t", "ExpiredToken", known=False),
        (
            "the storage refused to read s3://lake/t: ExpiredToken; the credentials are wrong or have expired: "
            "correct the "
            "key and its secret, or renew the token"
        ),
    ),
    (
        InvalidInputError("a pattern cannot be empty; '*' protects every name"),
        "a pattern cannot be empty; '*' protects every name",
    ),
]
# Words by which a sentence would say what is not there instead of what should be.
REFUSED_PHRASES = re.compile(
    r"\b(is|are) wanted\b|(?<!there )\bis no (name|JSON|list|text|number|type|URI|branch|tag|table)\b|!$"
)
# Names of classes, products and formats begin a sentence as they are written.
CAPITALS = frozenset(
    {
        "Arrow",
        "Freshness",
        "InRange",
        "Lance",
        "LanceResource",
        "NullRate",
        "Parquet",
        "PySpark",
        "RowCountChange",
        "Spark",
    }
)


def template(node: ast.expr) -> str | None:
    """The text of a literal, with `{}` for each value in it; None for another expression."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
    return None


def raised() -> Iterator[tuple[str, str]]:
    """Every literal sentence that is given to an error of the package, with the place of it."""
    for path in sorted((ROOT / architecture.PACKAGE).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES:
                for argument in node.args[:2]:
                    text = template(argument)
                    if text is not None and " " in text:
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", text


@pytest.mark.parametrize(
    "error, text", TEXTS, ids=lambda value: type(value).__name__ if isinstance(value, Exception) else ""
)
def test_texts(error: LanceDagsterError, text: str) -> None:
    """An error says what must be, what was, and what to do, in one sentence; its hint is the last part of it."""
    assert text == str(error)
    assert error.hint is None or text.endswith(error.hint)


@pytest.mark.parametrize("error", [error for error, _ in TEXTS], ids=lambda error: type(error).__name__)
def test_errors_are_pickled(error: LanceDagsterError) -> None:
    """Text, hint and fields are the same in another process."""
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - bytes of this test
    assert (type(error), str(error), error.hint) == (type(again), str(again), again.hint)
    assert vars(error) == vars(again)


def test_all_messages_have_one_form() -> None:
    """A message begins in small letters, ends without a full stop, and says what should be."""
    messages = [*raised()]
    assert len(messages) > 500  # or the search finds nothing any more
    capital = re.compile(r"[A-Z][a-z]\w*")
    unlike = [
        (place, text)
        for place, text in messages
        if (text.endswith(".") and not text.endswith("..."))
        or REFUSED_PHRASES.search(text)
        or ((first := capital.match(text)) and first[0] not in CAPITALS | CLASSES.keys())
    ]
    assert [] == unlike
