"""The policies of docs/guides/access.md on Ceph: what its gateway enforces, and what has to be written differently.

A test of something that Ceph does not enforce fails on a release that does: the page is to be changed then.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import botocore.session
import pytest

from lance_dagster import LanceTable
from lance_dagster.errors import ConditionalPutUnsupportedError, PermissionRefusedError
from lance_dagster.store import open_store
from tests.conftest import request
from tests.servers.ceph import ACCESS_KEY, ceph, client, new_bucket, new_user, options_of
from tests.store.access_scenarios import AccessScenarios, Role, Statements, policies, printed_policies
from tests.table_factory import SCHEMA, contents, entries

pytestmark = pytest.mark.ceph
# The answers of the gateway have a code and no text, so they do not name the permission.
REFUSAL = "the storage refused to .*; the credentials need the permission to "
LEFT_OUT = {"CreateTables", "CreateRepository", "NoManifestTwice"}


class Gateway(NamedTuple):
    """A gateway with one user for each role; the role `admin` is the owner of all buckets."""

    endpoint: str

    def role(self, name: str) -> dict[str, str]:
        """Return the storage options of a role."""
        return options_of(self.endpoint, ACCESS_KEY if name == "admin" else name)

    def call(self, name: str, method: str, uri: str, **arguments: object) -> Any:  # noqa: ANN401 - an answer of S3
        """Send a request about a bucket as a role, or the owner."""
        send = client(self.endpoint, ACCESS_KEY if name == "admin" else name)
        return send(method, Bucket=uri.removeprefix("s3://"), **arguments)

    def set_bucket_policy(self, uri: str, by_role: Mapping[str, Statements]) -> None:
        """Give a bucket one policy, with the statements of all roles."""
        statements = [
            each | {"Principal": {"AWS": [f"arn:aws:iam:::user/{ACCESS_KEY if name == 'admin' else name}"]}}
            for name, some in by_role.items()
            for each in some
        ]
        self.call("admin", "put_bucket_policy", uri, Policy=_policy(uri, statements))

    def set_user_policies(self, uri: str, by_role: Mapping[str, Statements], *, encoded: bool = True) -> None:
        """Give each user a policy for a bucket, with a `%` as `%25` or as it is."""
        session = botocore.session.get_session()
        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": f"{ACCESS_KEY}-secret"}
        iam = session.create_client("iam", region_name="us-east-1", endpoint_url=self.endpoint, **keys)
        for name, statements in by_role.items():
            text = _policy(uri, statements)
            iam.put_user_policy(
                UserName=ACCESS_KEY if name == "admin" else name,
                PolicyName=uri.removeprefix("s3://"),
                PolicyDocument=text.replace("%", "%25") if encoded else text,
            )


def _policy(uri: str, statements: Statements) -> str:
    """Return a policy for another bucket than the `lake` of the page."""
    text = json.dumps({"Version": "2012-10-17", "Statement": statements})
    return text.replace("arn:aws:s3:::lake", f"arn:aws:s3:::{uri.removeprefix('s3://')}")


def adapted() -> dict[str, Statements]:
    """The policies with the changes that the page demands for Ceph."""
    by_role = {
        name: [each for each in statements if each.get("Sid") not in LEFT_OUT]
        for name, statements in policies().items()
    }
    return by_role | {"runs": by_role["runs"] + printed_policies()["ceph"]}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway for all tests of this module."""
    folder = tmp_path_factory.mktemp("ceph")
    with ceph(folder) as endpoint:
        for name in policies().keys() - {"admin"}:
            new_user(folder, name)
        yield Gateway(endpoint)


@pytest.fixture
def role(gateway: Gateway) -> Role:
    """The storage options of a role."""
    return gateway.role


@pytest.fixture
def bucket(gateway: Gateway) -> str:
    """A bucket that no role may use yet."""
    return new_bucket(gateway.endpoint).uri


class CephScenarios(AccessScenarios):
    """What is the same with both kinds of policies."""

    refusal = REFUSAL
    knows_conditions = False
    clock_seconds = 1.0


class TestBucketPolicy(CephScenarios):
    """One policy of the bucket for all roles."""

    @pytest.fixture(scope="class")
    @classmethod
    def lake(cls, gateway: Gateway) -> str:
        """A bucket with the adapted policies."""
        uri = new_bucket(gateway.endpoint).uri
        gateway.set_bucket_policy(uri, adapted())
        return uri

    def test_what_no_statement_names_is_refused(self, gateway: Gateway, lake: str, role: Role, uri: str) -> None:
        """Neither another kind of write nor a change of the bucket gets around the policy."""
        run = self.created(role, uri)
        run.branches.create("run/1")
        run.append(entries("a", 1), branch="run/1")
        table = uri.removeprefix(f"{lake}/")
        before, objects = run.head(), _objects(gateway, lake)
        manifest = f"{table}/_versions/{open_store(uri, role('reader')).list('_versions')[0]}"
        row = next(key for key in objects if key.startswith(f"{table}/data/"))
        public = json.dumps({"Version": "2012-10-17", "Statement": [{**policies()["admin"][0], "Principal": "*"}]})
        bucket_changes: dict[str, dict[str, object]] = {
            "put_bucket_acl": {"ACL": "public-read-write"},
            "put_bucket_policy": {"Policy": public},
            "delete_bucket_policy": {},
            "put_bucket_versioning": {"VersioningConfiguration": {"Status": "Suspended"}},
            "delete_bucket": {},
        }
        # The publisher may write the manifest of `main`, and it belongs to the publisher.
        changes = bucket_changes | {
            "copy_object": {"Key": manifest, "CopySource": f"{lake.removeprefix('s3://')}/{row}"},
            "create_multipart_upload": {"Key": manifest},
            "put_object_acl": {"Key": manifest, "ACL": "public-read-write"},
            "put_object_tagging": {"Key": manifest, "Tagging": {"TagSet": []}},
        }
        for name, attempts in {"runs": changes, "reader": changes, "publisher": bucket_changes}.items():
            for method, arguments in attempts.items():
                with pytest.raises(PermissionError):
                    gateway.call(name, method, lake, **arguments)
        for name, keys in {"runs": [row, manifest], "publisher": [row]}.items():
            answer = gateway.call(name, "delete_objects", lake, Delete={"Objects": [{"Key": key} for key in keys]})
            assert ["AccessDenied"] * len(keys) == [error["Code"] for error in answer["Errors"]]
        with pytest.raises(PermissionError):
            gateway.call("reader", "delete_objects", lake, Delete={"Objects": [{"Key": row}]})
        assert (before, objects) == (run.head(), _objects(gateway, lake))


class TestUserPolicies(CephScenarios):
    """A policy of each user."""

    @pytest.fixture(scope="class")
    @classmethod
    def lake(cls, gateway: Gateway) -> str:
        """A bucket for which each user has its adapted policy."""
        uri = new_bucket(gateway.endpoint).uri
        gateway.set_user_policies(uri, adapted())
        return uri


def _objects(gateway: Gateway, uri: str) -> dict[str, str]:
    answer = gateway.call("admin", "list_objects_v2", uri)
    return {entry["Key"]: entry["ETag"] for entry in answer["Contents"]}


def test_a_condition_on_if_none_match_means_nothing(gateway: Gateway, bucket: str, role: Role) -> None:
    """Ceph takes the key for missing and `Null` for true: a run may replace `main@1`, no publisher may write `main`."""
    gateway.set_bucket_policy(bucket, policies())
    LanceTable.create(f"{bucket}/x/orders.lance", SCHEMA, storage_options=role("runs"))
    store = open_store(f"{bucket}/x/orders.lance", role("runs"))
    (name,) = store.list("_versions")
    store.put(f"_versions/{name}", b"replaced")
    assert b"replaced" == store.get(f"_versions/{name}")
    for text in (b"1", b"2"):
        open_store(bucket, role("runs")).put("_repository/pins/run", text)
    assert b"2" == open_store(bucket, role("reader")).get("_repository/pins/run")
    # The pattern of the statement matches in the first folder below the bucket only, see below.
    table = LanceTable.create(f"{bucket}/orders.lance", SCHEMA, storage_options=role("runs"))
    with pytest.raises(PermissionRefusedError, match=r"refused to write .*/orders\.lance/_versions/"):
        LanceTable.open(table.uri, role("publisher")).append(entries("a", 1))
    assert 1 == table.head().number


def test_a_bucket_with_versions_ignores_conditions(gateway: Gateway, bucket: str, role: Role) -> None:
    """What a bucket with versions keeps is no help: two writers would overwrite each other, so it is refused."""
    gateway.set_bucket_policy(bucket, adapted())
    gateway.call("admin", "put_bucket_versioning", bucket, VersioningConfiguration={"Status": "Enabled"})
    store = open_store(f"{bucket}/orders.lance", role("publisher"))
    with pytest.raises(ConditionalPutUnsupportedError):
        store.put_if_absent("_refs/identity.json", b"")
    assert store.get("_refs/identity.json") is None


def test_a_request_that_deletes_several_objects_needs_the_bucket(gateway: Gateway, bucket: str, role: Role) -> None:
    """Without the statement of the page, a run deletes its branch, but not the files of it."""
    gateway.set_bucket_policy(bucket, adapted() | {"runs": policies()["runs"]})
    table = LanceTable.create(f"{bucket}/orders.lance", SCHEMA, storage_options=role("publisher"))
    run = LanceTable.open(table.uri, role("runs"))
    run.branches.create("run/1")
    run.append(entries("a", 1), branch="run/1")
    with pytest.raises(PermissionRefusedError):
        run.branches.delete("run/1")
    assert {} == table.branches.list()
    assert open_store(table.uri, role("reader")).list("tree/run/1/_versions")
    gateway.set_bucket_policy(bucket, adapted())
    run.branches.create("run/2")
    run.append(entries("a", 1), branch="run/2")
    run.branches.delete("run/2")
    assert not open_store(table.uri, role("reader")).list("tree/run/2/_versions")


PATH = "my_shop.v2/orders.lance"


def _with_path(statements: Statements) -> Statements:
    """Name the path of one table where the page has a pattern."""
    text = json.dumps(statements)
    return json.loads(text.replace("*.lance/", f"{PATH}/").replace("*_refs/", f"{PATH}/_refs/"))  # type: ignore[no-any-return]


def test_a_star_ends_where_the_next_character_first_occurs(gateway: Gateway, bucket: str, role: Role) -> None:
    """A dot or an underscore before the pattern's own: permissions and refusals are lost, unless the path is named."""
    uri = f"{bucket}/{PATH}"
    gateway.set_bucket_policy(bucket, adapted())
    table = LanceTable.create(uri, SCHEMA, storage_options=role("publisher"))
    store = open_store(uri, role("publisher"))
    with pytest.raises(PermissionRefusedError):
        LanceTable.open(uri, role("runs")).branches.create("run/1")
    store.put("data/row.lance", b"")
    store.delete("data/row.lance")
    gateway.set_bucket_policy(bucket, {name: _with_path(each) for name, each in adapted().items()})
    run = LanceTable.open(uri, role("runs"))
    run.branches.create("run/1")
    run.append(entries("a", 1), branch="run/1")
    with pytest.raises(PermissionRefusedError):
        run.append(entries("a", 1))
    publisher = LanceTable.open(uri, role("publisher"))
    publisher.merge("run/1")
    with pytest.raises(PermissionRefusedError):
        store.delete(f"data/{store.list('data')[0]}")
    assert [("a", 1)] == contents(table)


def test_the_owner_of_the_bucket_may_not_read_what_others_wrote(gateway: Gateway, bucket: str, role: Role) -> None:
    """Objects belong to who wrote them: the owner needs a statement too."""
    by_role = adapted()
    gateway.set_bucket_policy(bucket, {name: each for name, each in by_role.items() if name != "admin"})
    table = LanceTable.create(f"{bucket}/orders.lance", SCHEMA, storage_options=role("publisher"))
    with pytest.raises(PermissionRefusedError):
        LanceTable.open(table.uri, role("admin")).read()
    gateway.set_bucket_policy(bucket, by_role)
    assert 0 == LanceTable.open(table.uri, role("admin")).read().num_rows


def test_a_user_may_show_everyone_what_it_wrote(gateway: Gateway, bucket: str, role: Role) -> None:
    """A user manages the access lists of its objects; what refuses that is not obeyed by an upload in parts."""
    refusals: Statements = [
        {"Action": "s3:PutObjectAcl"},
        {"Action": "s3:PutObject", "Condition": {"StringLike": {"s3:x-amz-acl": "?*"}}},
    ]
    refusals = [each | {"Effect": "Deny", "Resource": "arn:aws:s3:::lake/*"} for each in refusals]
    by_role = adapted()
    gateway.set_bucket_policy(bucket, by_role | {"runs": by_role["runs"] + refusals})
    key = "orders.lance/data/row.lance"
    open_store(bucket, role("runs")).put(key, b"")
    for method in ("put_object", "put_object_acl"):
        with pytest.raises(PermissionError):
            gateway.call("runs", method, bucket, Key=key, ACL="public-read")
    anonymous = (gateway.endpoint.removeprefix("http://"), "GET", f"/{bucket.removeprefix('s3://')}/{key}")
    assert 403 == request(*anonymous)
    started = gateway.call("runs", "create_multipart_upload", bucket, Key=key, ACL="public-read")
    upload = {"Key": key, "UploadId": started["UploadId"]}
    tag = gateway.call("runs", "upload_part", bucket, **upload, PartNumber=1, Body=b"rows")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": tag}]}
    gateway.call("runs", "complete_multipart_upload", bucket, **upload, MultipartUpload=parts)
    assert 200 == request(*anonymous)


def test_the_text_of_a_policy_of_a_user_is_decoded_twice(gateway: Gateway, bucket: str, role: Role) -> None:
    """With `%2F` as it is printed, a run cannot create its branch."""
    gateway.set_user_policies(bucket, adapted(), encoded=False)
    table = LanceTable.create(f"{bucket}/orders.lance", SCHEMA, storage_options=role("publisher"))
    with pytest.raises(PermissionRefusedError, match=r"refused to write .*/_refs/branches/run%2F1\.json"):
        LanceTable.open(table.uri, role("runs")).branches.create("run/1")
    assert {} == table.branches.list()
    gateway.set_user_policies(bucket, adapted())
    LanceTable.open(table.uri, role("runs")).branches.create("run/1")
    assert ["run/1"] == [*table.branches.list()]
