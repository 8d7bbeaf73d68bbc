"""Permissions on the S3 server of the tests: signatures (AWS version 4) and policies in Amazon's language.

Of the policy language, only what policies by prefix need is enforced: `Effect`, `Action`, `Resource` and the conditions
`StringLike` and `Null`. Reading accounts with anything else is an error, so no policy is weaker than it looks.
"""

import hashlib
import hmac
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from aiohttp import web

_UNRESERVED = "-_.~"
_STATEMENT = {"Sid", "Effect", "Action", "Resource", "Condition"}
_OPERATORS = {"StringLike", "Null"}


class RefusedError(Exception):
    """A request that is not allowed: the code of the answer, and a sentence."""

    def __init__(self, code: str, message: str) -> None:
        """Keep the code and the sentence."""
        super().__init__(code, message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An access key and its permissions."""

    name: str
    secret_access_key: str
    session_token: str = ""
    expires: float = float("inf")
    statements: tuple[Mapping[str, Any], ...] = ()

    def allows(self, action: str, resource: str, values: Mapping[str, str]) -> bool:
        """Whether a statement allows the action and none denies it; `values` are what conditions can name."""
        effects = {each["Effect"] for each in self.statements if _applies(each, action, resource, values)}
        return effects == {"Allow"}


def read_accounts(path: Path) -> dict[str, Account]:
    """Read accounts by their access keys; `policy` is the text of a policy.

    Raises:
        ValueError: A policy says something that this module does not enforce.
    """
    accounts = {}
    for key_id, given in json.loads(path.read_text()).items():
        policy = given.pop("policy")
        for statement in policy["Statement"]:
            unknown = (statement.keys() - _STATEMENT) | (statement.get("Condition", {}).keys() - _OPERATORS)
            if unknown:
                raise ValueError(f"the policy of {given['name']} has {sorted(unknown)}, which is not enforced here")
        accounts[key_id] = Account(statements=tuple(policy["Statement"]), **given)
    return accounts


def authenticated(accounts: Mapping[str, Account], request: web.Request, body: bytes) -> Account:
    """Return the account that signed a request.

    Raises:
        RefusedError: The request is not signed, or the signature, the token or the time is wrong.
    """
    scheme, _, rest = request.headers.get("Authorization", "").partition(" ")
    if scheme != "AWS4-HMAC-SHA256":
        raise RefusedError("AccessDenied", "Anonymous access is forbidden for this operation")
    fields = dict(part.strip().split("=", 1) for part in rest.split(","))
    key_id, date, region, service, _ = fields["Credential"].split("/")
    account = accounts.get(key_id)
    if account is None:
        raise RefusedError("InvalidAccessKeyId", "The access key id you provided does not exist in our records")
    if request.headers.get("x-amz-security-token", "") != account.session_token:
        raise RefusedError("InvalidToken", "The provided token is malformed or otherwise invalid")
    if time.time() > account.expires:
        raise RefusedError("ExpiredToken", "The provided token has expired")
    key = f"AWS4{account.secret_access_key}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    scope = f"{date}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(_canonical(request, fields["SignedHeaders"]).encode()).hexdigest()
    signed = f"AWS4-HMAC-SHA256\n{request.headers['x-amz-date']}\n{scope}\n{digest}"
    if not hmac.compare_digest(hmac.digest(key, signed.encode(), "sha256").hex(), fields["Signature"]):
        raise RefusedError("SignatureDoesNotMatch", "The request signature does not match the signature you provided")
    declared = request.headers["x-amz-content-sha256"]
    if len(declared) == hashlib.sha256().digest_size * 2 and declared != hashlib.sha256(body).hexdigest():
        raise RefusedError("XAmzContentSHA256Mismatch", "The provided x-amz-content-sha256 does not match the body")
    return account


def _canonical(request: web.Request, signed_headers: str) -> str:
    path, _, query = request.raw_path.partition("?")
    pairs = sorted((quote(k, _UNRESERVED), quote(v, _UNRESERVED)) for k, v in parse_qsl(query, keep_blank_values=True))
    headers = [f"{name}:{' '.join(request.headers[name].split())}\n" for name in signed_headers.split(";")]
    return "\n".join(
        [
            request.method,
            quote(unquote(path), f"/{_UNRESERVED}"),
            "&".join(f"{name}={value}" for name, value in pairs),
            "".join(headers),
            signed_headers,
            request.headers["x-amz-content-sha256"],
        ]
    )


def _applies(statement: Mapping[str, Any], action: str, resource: str, values: Mapping[str, str]) -> bool:
    conditions = statement.get("Condition", {})
    likes = (
        name in values and any(fnmatchcase(values[name], like) for like in _listed(wanted))
        for name, wanted in conditions.get("StringLike", {}).items()
    )
    nulls = ((name not in values) == (wanted == "true") for name, wanted in conditions.get("Null", {}).items())
    return (
        any(fnmatchcase(action, like) for like in _listed(statement["Action"]))
        and any(fnmatchcase(f"arn:aws:s3:::{resource}", like) for like in _listed(statement["Resource"]))
        and all(likes)
        and all(nulls)
    )


def _listed(given: str | Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)
