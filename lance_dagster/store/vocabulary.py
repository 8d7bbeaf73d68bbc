"""The storage options of each provider under pylance's names: one table for each provider.

Everything else follows these tables: which names are refused, which values are secrets, what the environment sets, and
the typed options of Dagster's resource. One vocabulary for everything that opens a table: what works for pylance works
here, and what pylance would ignore is refused.
"""

import difflib
import os
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from lance_dagster.errors import InvalidInputError

_TRUE = frozenset({"1", "true", "yes", "on"})
_RETRY_SECONDS = 30.0
_DURATION = re.compile(r"([0-9]{1,9}) ?(ms|s|m)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


class Option(NamedTuple):
    """A storage option of a provider.

    Attributes:
        spellings: Pylance's names for the option, the usual name first.
        secret: Whether the value is a secret.
        credential: Whether the option is one of the credentials that exclude each other.
        field: The field of the Dagster resource that sets the option; empty for an option without such a field.
        written: The name under which the value of the field is handed on; the usual name if `written` is empty.
        is_flag: Whether the field is a boolean.
        description: The description of the field, which Dagster's pages show.
    """

    spellings: tuple[str, ...]
    secret: bool = False
    credential: bool = False
    field: str = ""
    written: str = ""
    is_flag: bool = False
    description: str = ""


class Vocabulary(NamedTuple):
    """The options of a provider, by what each is called here; the check, the resource field and the docs follow it."""

    provider: str
    schemes: tuple[str, ...]
    store: str
    """The class of its store, one of `lance_dagster.store`."""
    options: Mapping[str, Option]

    @property
    def names(self) -> dict[str, str]:
        """Pylance's names, each with the name here."""
        return {spelt: name for name, option in self.options.items() for spelt in option.spellings}

    @property
    def secrets(self) -> frozenset[str]:
        """The options whose values are secrets, by their names here."""
        return frozenset(name for name, option in self.options.items() if option.secret)

    @property
    def credentials(self) -> frozenset[str]:
        """The credentials that exclude each other: any of them as an option keeps those of the environment out."""
        return frozenset(name for name, option in self.options.items() if option.credential)

    @property
    def fields(self) -> dict[str, Option]:
        """The options that are fields of a resource, by the names of the fields."""
        return {option.field: option for option in self.options.values() if option.field}


def _of_s3(*names: str) -> tuple[str, ...]:
    """Return the spellings of an option of S3, whose prefix may be left out."""
    return (*(f"aws_{name}" for name in names), *names)


_ALLOW_HTTP = Option(
    ("allow_http",), field="allow_http", is_flag=True, description="Whether the endpoint may be plain http."
)
_RETRY_TIMEOUT = Option(("client_retry_timeout",))
S3 = Vocabulary(
    provider="S3",
    schemes=("s3",),
    store="S3Store",
    options={
        "access_key_id": Option(
            _of_s3("access_key_id"), field="access_key_id", description="The id of the access key."
        ),
        "secret_access_key": Option(
            _of_s3("secret_access_key"),
            secret=True,
            field="secret_access_key",
            description="The access key; give it as EnvVar.",
        ),
        "session_token": Option(
            _of_s3("session_token", "token"),
            secret=True,
            field="session_token",
            description="Token of temporary credentials; give it as EnvVar.",
        ),
        "region": Option(_of_s3("region", "default_region"), field="region", description="The region of the bucket."),
        "endpoint": Option(
            _of_s3("endpoint", "endpoint_url"), field="endpoint", description="URL of a server other than AWS."
        ),
        "allow_http": _ALLOW_HTTP._replace(spellings=_of_s3("allow_http"), written="allow_http"),
        "skip_signature": Option(
            _of_s3("skip_signature"),
            field="anonymous",
            written="skip_signature",
            is_flag=True,
            description="Whether requests are not signed, for public buckets.",
        ),
        "virtual_hosted_style_request": Option(
            _of_s3("virtual_hosted_style_request"),
            field="virtual_hosted_style",
            is_flag=True,
            description="Whether the endpoint resolves bucket names as host names.",
        ),
        "timeout": Option(_of_s3("timeout")),
        "connect_timeout": Option(_of_s3("connect_timeout")),
        "retry_seconds": Option(_of_s3("client_retry_timeout")),
    },
)
AZURE = Vocabulary(
    provider="Azure",
    schemes=("az", "abfss"),
    store="AzureStore",
    options={
        "account_name": Option(
            ("account_name", "azure_storage_account_name"), field="account_name", description="The storage account."
        ),
        "account_key": Option(
            (
                *("account_key", "azure_storage_account_key", "azure_storage_access_key", "azure_storage_master_key"),
                *("access_key", "master_key"),
            ),
            secret=True,
            credential=True,
            field="account_key",
            description="A key of the account; give it as EnvVar.",
        ),
        "sas_token": Option(
            ("sas_token", "azure_storage_sas_token", "azure_storage_sas_key", "sas_key"),
            secret=True,
            credential=True,
            field="sas_token",
            description="A shared access signature; give it as EnvVar.",
        ),
        "token": Option(("bearer_token", "azure_storage_token", "token"), secret=True, credential=True),
        "tenant_id": Option(
            (
                *("tenant_id", "azure_tenant_id", "azure_storage_tenant_id", "azure_storage_authority_id"),
                *("azure_authority_id", "authority_id"),
            ),
            field="tenant_id",
            description="The tenant of a service principal.",
        ),
        "client_id": Option(
            ("client_id", "azure_client_id", "azure_storage_client_id"),
            field="client_id",
            description="The id of a service principal.",
        ),
        "client_secret": Option(
            ("client_secret", "azure_client_secret", "azure_storage_client_secret"),
            secret=True,
            credential=True,
            field="client_secret",
            description="Its secret; give it as EnvVar.",
        ),
        "use_azure_cli": Option(
            ("use_azure_cli", "azure_use_azure_cli"),
            credential=True,
            field="use_azure_cli",
            is_flag=True,
            description="Whether the user who is logged in with `az login` is used.",
        ),
        "endpoint": Option(
            ("endpoint", "azure_storage_endpoint", "azure_endpoint"),
            field="endpoint",
            written="azure_storage_endpoint",
            description="URL of the account where it is not Azure's, such as an emulator.",
        ),
        "allow_http": _ALLOW_HTTP,
        "skip_signature": Option(
            ("skip_signature", "azure_skip_signature"),
            credential=True,
            field="anonymous",
            is_flag=True,
            description="Whether requests are not signed, for public containers.",
        ),
        "timeout": Option(("timeout", "azure_timeout")),
        "connect_timeout": Option(("connect_timeout", "azure_connect_timeout")),
        "retry_seconds": _RETRY_TIMEOUT,
    },
)
GOOGLE = Vocabulary(
    provider="Google",
    schemes=("gs",),
    store="GoogleStore",
    options={
        "service_account": Option(
            ("service_account", "google_service_account", "google_service_account_path", "service_account_path"),
            credential=True,
            field="service_account",
            written="google_service_account",
            description="Path of the JSON file of a service account's key.",
        ),
        "service_account_key": Option(
            ("service_account_key", "google_service_account_key"),
            secret=True,
            credential=True,
            field="service_account_key",
            written="google_service_account_key",
            description="The key itself; give it as EnvVar.",
        ),
        "application_credentials": Option(
            ("application_credentials", "google_application_credentials"), credential=True
        ),
        "token": Option(
            ("google_storage_token", "google_bearer_token"),
            secret=True,
            credential=True,
            field="storage_token",
            description="A short-lived token; give it as EnvVar.",
        ),
        "endpoint": Option(("google_base_url",), field="endpoint", description="URL of a server other than Google's."),
        "allow_http": _ALLOW_HTTP,
        "skip_signature": Option(
            ("skip_signature", "google_skip_signature"),
            credential=True,
            field="anonymous",
            written="google_skip_signature",
            is_flag=True,
            description="Whether requests are not signed, for public buckets.",
        ),
        "timeout": Option(("timeout", "google_timeout")),
        "connect_timeout": Option(("connect_timeout", "google_connect_timeout")),
        "retry_seconds": _RETRY_TIMEOUT,
    },
)
# In this order a name that two providers have is looked up.
PROVIDERS = (AZURE, GOOGLE, S3)
OF_EVERY_PROVIDER = frozenset({"allow_http", "client_retry_timeout", "timeout", "connect_timeout"})
"""Pylance's names of the options that apply whichever provider a folder is on."""


def translated(vocabulary: Vocabulary, storage_options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their names here, with what the environment sets beside them.

    Raises:
        InvalidInputError: An option is unknown, not a string, or has a control character.
    """
    options: dict[str, str] = {}
    names = vocabulary.names
    for option, value in storage_options.items():
        name = names.get(option.lower())
        if name is None:
            near = difflib.get_close_matches(option.lower(), names, n=1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            usual_names = ", ".join(option.spellings[0] for option in vocabulary.options.values())
            raise InvalidInputError(
                f"unknown storage option {option!r} of {vocabulary.provider}{meant}; known: {usual_names}"
            )
        check_option(option, value)
        options[name] = value
    return _environment(vocabulary, options) | options


def check_option(name: str, value: object) -> None:
    """Refuse the value of an option that no header of a request can hold; the message does not show it.

    Raises:
        InvalidInputError: The value is not a string, or has a control character or an unpaired surrogate.
    """
    if not isinstance(value, str):
        raise InvalidInputError(f"storage option {name!r} must be a string, not {type(value).__name__}")
    # The key of a service account is JSON, where line breaks may stand.
    if not name.lower().endswith("service_account_key") and any(mark < " " or mark == "\x7f" for mark in value):
        raise InvalidInputError(
            f"storage option {name!r} has a line break or another control character; remove it, as in value.strip()"
        )
    if any("\ud800" <= mark <= "\udfff" for mark in value):
        raise InvalidInputError(f"storage option {name!r} has an unpaired surrogate, which UTF-8 cannot encode")


def _environment(vocabulary: Vocabulary, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the environment sets, as pylance reads it."""
    # A key in the environment does not compete with a token that was given.
    left_out = vocabulary.credentials if options.keys() & vocabulary.credentials else frozenset[str]()
    settings = {
        name: os.environ[spelt.upper()]
        for name, option in vocabulary.options.items()
        for spelt in reversed(option.spellings)
        if spelt.startswith(vocabulary.provider.lower()) and spelt.upper() in os.environ and name not in left_out
    }
    for name, value in settings.items():
        check_option(name, value)
    # For pylance, each of the two variables applies to all providers.
    plain = os.environ.get("AZURE_STORAGE_ALLOW_HTTP", os.environ.get("AWS_ALLOW_HTTP"))
    return settings if plain is None else {**settings, "allow_http": plain}


def is_true(value: str | None) -> bool:
    """Tell whether an option that is a flag is set."""
    return value is not None and value.lower() in _TRUE


def retry_seconds(options: Mapping[str, str]) -> float:
    """Return for how long requests are repeated: the option `client_retry_timeout`.

    Raises:
        InvalidInputError: It is not a number of seconds.
    """
    seconds = options.get("retry_seconds")
    if seconds is None:
        return _RETRY_SECONDS
    if not seconds.isdecimal():
        raise InvalidInputError(f"the storage option client_retry_timeout is a number of seconds, not {seconds!r}")
    return float(seconds)


class Timeouts(NamedTuple):
    """How many seconds a client waits for a connection, and then for the next bytes of a response."""

    connect: float
    read: float


def timeouts(options: Mapping[str, str], usual: Timeouts) -> Timeouts:
    """Return the options `connect_timeout` and `timeout`; an option that is not given has the usual value.

    Raises:
        InvalidInputError: An option is not a duration with a unit.
    """
    return Timeouts(
        connect=_seconds("connect_timeout", options, usual.connect), read=_seconds("timeout", options, usual.read)
    )


def _seconds(name: str, options: Mapping[str, str], usual: float) -> float:
    duration = options.get(name)
    if duration is None:
        return usual
    match = _DURATION.fullmatch(duration)
    # pylance accepts zero, and then each of its requests fails.
    if match is None or not int(match[1]):
        raise InvalidInputError(
            f"the storage option {name} is a whole number above zero with a unit, ms, s or m, such as '30s', "
            f"not {duration!r}"
        )
    return int(match[1]) * _UNITS[match[2]]


def refuse_credentials_in(endpoint: str, name: str) -> None:
    """Refuse an endpoint that may carry credentials: endpoints are shown in errors and on Dagster's pages.

    Raises:
        InvalidInputError: The endpoint has a user, a query or a fragment; the message shows only its name.
    """
    if any(mark in endpoint for mark in "@?#"):
        raise InvalidInputError(f"{name} cannot contain '@', '?' or '#'; give credentials as storage options")


def check_endpoint(endpoint: str | None, *, allow_http: bool) -> None:
    """Refuse an endpoint that carries credentials, is not a URL, or is not encrypted where plain http is not allowed.

    Raises:
        InvalidInputError: The message does not show the endpoint, which may be a secret in the wrong option.
    """
    if endpoint is None:
        return
    refuse_credentials_in(endpoint, "the endpoint")
    try:
        parts = urlsplit(endpoint)
        # The port is parsed when it is asked for.
        is_url = parts.scheme.lower() in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise InvalidInputError("the endpoint must be a URL such as https://storage.example.com:9000")
    if endpoint.lower().startswith("http://") and not allow_http:
        raise InvalidInputError("the endpoint uses plain http; set the storage option allow_http to 'true'")
