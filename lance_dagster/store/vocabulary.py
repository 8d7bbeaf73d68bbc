"""The storage options of Azure and Google under pylance's names, and the variables of the environment that set them.

One vocabulary for everything that opens a table: what works for pylance works here, and what pylance would ignore is
refused. S3's options are in `options`.
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


class Vocabulary(NamedTuple):
    """The options of a provider: what each is called here, and pylance's names for it, the usual one first."""

    provider: str
    options: Mapping[str, tuple[str, ...]]
    # Credentials that exclude each other: any of them given as an option keeps all credentials of the environment out.
    credentials: frozenset[str]
    secrets: frozenset[str]

    @property
    def names(self) -> dict[str, str]:
        """Pylance's names, each with the name here."""
        return {spelt: name for name, spellings in self.options.items() for spelt in spellings}


_CLIENT = {"allow_http": ("allow_http",), "retry_seconds": ("client_retry_timeout",)}
AZURE = Vocabulary(
    provider="Azure",
    options={
        "account_name": ("account_name", "azure_storage_account_name"),
        "account_key": (
            *("account_key", "azure_storage_account_key", "azure_storage_access_key", "azure_storage_master_key"),
            *("access_key", "master_key"),
        ),
        "sas_token": ("sas_token", "azure_storage_sas_token", "azure_storage_sas_key", "sas_key"),
        "token": ("bearer_token", "azure_storage_token", "token"),
        "client_id": ("client_id", "azure_client_id", "azure_storage_client_id"),
        "client_secret": ("client_secret", "azure_client_secret", "azure_storage_client_secret"),
        "tenant_id": (
            *("tenant_id", "azure_tenant_id", "azure_storage_tenant_id", "azure_storage_authority_id"),
            *("azure_authority_id", "authority_id"),
        ),
        "endpoint": ("endpoint", "azure_storage_endpoint", "azure_endpoint"),
        "use_azure_cli": ("use_azure_cli", "azure_use_azure_cli"),
        "skip_signature": ("skip_signature", "azure_skip_signature"),
        "timeout": ("timeout", "azure_timeout"),
        "connect_timeout": ("connect_timeout", "azure_connect_timeout"),
        **_CLIENT,
    },
    credentials=frozenset({"account_key", "sas_token", "token", "client_secret", "use_azure_cli", "skip_signature"}),
    secrets=frozenset({"account_key", "sas_token", "token", "client_secret"}),
)
GOOGLE = Vocabulary(
    provider="Google",
    options={
        "service_account": (
            *("service_account", "google_service_account", "google_service_account_path", "service_account_path"),
        ),
        "service_account_key": ("service_account_key", "google_service_account_key"),
        "application_credentials": ("application_credentials", "google_application_credentials"),
        "token": ("google_storage_token", "google_bearer_token"),
        "endpoint": ("google_base_url",),
        "skip_signature": ("skip_signature", "google_skip_signature"),
        "timeout": ("timeout", "google_timeout"),
        "connect_timeout": ("connect_timeout", "google_connect_timeout"),
        **_CLIENT,
    },
    credentials=frozenset(
        {"service_account", "service_account_key", "application_credentials", "token", "skip_signature"}
    ),
    secrets=frozenset({"service_account_key", "token"}),
)


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
            usual_names = ", ".join(spellings[0] for spellings in vocabulary.options.values())
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
        for name, spellings in vocabulary.options.items()
        for spelt in reversed(spellings)
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
