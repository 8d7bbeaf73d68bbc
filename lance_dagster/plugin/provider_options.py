"""Credentials and endpoints of storage providers as typed options of a resource, and which of them are secrets.

What a field says comes from the tables in `store/vocabulary`; the classes give its name to type checkers and editors.
Each becomes an option under pylance's name, which the rest of the package uses.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import dagster as dg
from pydantic import ConfigDict, Field

from lance_dagster.errors import InvalidInputError
from lance_dagster.store.vocabulary import AZURE, GOOGLE, S3, Vocabulary


def check_fields(model: type[dg.Config], fields: Mapping[str, object]) -> None:
    """Refuse names that are not fields of a resource; pydantic would ignore them silently.

    Raises:
        InvalidInputError: A name is unknown. The message suggests the nearest field.
    """
    field_names = sorted(model.model_fields)
    for name in fields:
        if name not in field_names:
            near = difflib.get_close_matches(name, field_names, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"fields: {', '.join(field_names)}"
            raise InvalidInputError(f"{model.__name__} has no field {name!r}; {meant}")


class ProviderOptions(dg.Config):
    """The options of one storage provider. Fields that are left out come from the environment of the process."""

    # Pydantic quotes a rejected value in its error, and the value may be a credential. Most code locations use the
    # options of one provider or none, so their validators are made when they are first used.
    model_config = ConfigDict(hide_input_in_errors=True, defer_build=True)

    # The option of each field.
    OPTIONS: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **fields: object) -> None:
        """Refuse unknown fields, and an endpoint with credentials, when the options are constructed."""
        check_fields(type(self), fields)
        super().__init__(**fields)
        # Imported here, since most code locations use none of these options.
        from lance_dagster.store import refuse_credentials

        options = self.as_storage_options()
        refuse_credentials({name: value for name, value in options.items() if not is_variable(value)})

    def as_storage_options(self) -> dict[str, str]:
        """Return the options under pylance's names, without the fields that are left out."""
        # A field that is false or empty counts as left out.
        options = {option: getattr(self, field) for field, option in self.OPTIONS.items()}
        return {option: "true" if value is True else value for option, value in options.items() if value}


def _field(vocabulary: Vocabulary, name: str) -> Any:  # noqa: ANN401  # as pydantic's `Field`
    """Return the default, the description and the secrecy of a field, as the table of the provider has them."""
    option = vocabulary.fields[name]
    default = False if option.is_flag else ""
    return Field(default=default, repr=not option.secret, description=option.description)


def _options_of(vocabulary: Vocabulary) -> Mapping[str, str]:
    """Return the option of each field."""
    return {name: option.written or option.spellings[0] for name, option in vocabulary.fields.items()}


class S3Options(ProviderOptions):
    """Options to reach an S3 bucket. Give secrets as `dg.EnvVar`: Dagster shows other values on the resource's page.

    Fields that are left out are taken from the environment and the files of the AWS tools.

    Examples:
        >>> options = S3Options(region="eu-central-1", secret_access_key=dg.EnvVar("AWS_SECRET"))
        >>> options.as_storage_options()["aws_region"]
        'eu-central-1'
    """

    OPTIONS: ClassVar[Mapping[str, str]] = _options_of(S3)

    access_key_id: str = _field(S3, "access_key_id")
    secret_access_key: str = _field(S3, "secret_access_key")
    session_token: str = _field(S3, "session_token")
    region: str = _field(S3, "region")
    endpoint: str = _field(S3, "endpoint")
    allow_http: bool = _field(S3, "allow_http")
    anonymous: bool = _field(S3, "anonymous")
    virtual_hosted_style: bool = _field(S3, "virtual_hosted_style")


class AzureOptions(ProviderOptions):
    """Options to reach a container of Azure Blob Storage. Give secrets as `dg.EnvVar`.

    Without a key, a signature or a secret, the identity of the machine is used: the environment, a managed identity,
    or the user who is logged in with Azure's tools.

    Examples:
        >>> AzureOptions(account_name="lake", account_key=dg.EnvVar("LAKE_KEY")).as_storage_options()["account_name"]
        'lake'
    """

    OPTIONS: ClassVar[Mapping[str, str]] = _options_of(AZURE)

    account_name: str = _field(AZURE, "account_name")
    account_key: str = _field(AZURE, "account_key")
    sas_token: str = _field(AZURE, "sas_token")
    tenant_id: str = _field(AZURE, "tenant_id")
    client_id: str = _field(AZURE, "client_id")
    client_secret: str = _field(AZURE, "client_secret")
    use_azure_cli: bool = _field(AZURE, "use_azure_cli")
    endpoint: str = _field(AZURE, "endpoint")
    allow_http: bool = _field(AZURE, "allow_http")
    anonymous: bool = _field(AZURE, "anonymous")


class GoogleOptions(ProviderOptions):
    """Options to reach a bucket of Google Cloud Storage. Give secrets as `dg.EnvVar`.

    Without a service account, the application default credentials of the machine are used.

    Examples:
        >>> GoogleOptions(service_account="/etc/lake.json").as_storage_options()
        {'google_service_account': '/etc/lake.json'}
    """

    OPTIONS: ClassVar[Mapping[str, str]] = _options_of(GOOGLE)

    service_account: str = _field(GOOGLE, "service_account")
    service_account_key: str = _field(GOOGLE, "service_account_key")
    storage_token: str = _field(GOOGLE, "storage_token")
    endpoint: str = _field(GOOGLE, "endpoint")
    allow_http: bool = _field(GOOGLE, "allow_http")
    anonymous: bool = _field(GOOGLE, "anonymous")


def is_variable(value: object) -> bool:
    """Return whether a value is the name of an environment variable, which Dagster resolves when a run starts."""
    return isinstance(value, dg.EnvVar)


def literal_secrets(storage_options: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of secret options whose values are written in the definitions, and not as `dg.EnvVar`."""
    from lance_dagster.store import is_secret_option

    for name, value in storage_options.items():
        # An option of one base path is written base_<id>.<option>.
        if is_secret_option(name.rpartition(".")[2]) and value and not is_variable(value):
            yield name


def merge_options(storage_options: Mapping[str, str], **providers: ProviderOptions | None) -> dict[str, str]:
    """Return the storage options together with the typed options, which belong to one provider.

    Raises:
        InvalidInputError: An option is given both ways, or there are typed options of two providers.
    """
    from lance_dagster.store import option_identity

    by_field = {field: options for field, options in providers.items() if options is not None}
    if len(by_field) > 1:
        raise InvalidInputError(
            f"LanceResource gets {' and '.join(by_field)}; give only the options of the provider that its root is on"
        )
    if not by_field:
        return dict(storage_options)
    ((field, options),) = by_field.items()
    typed = options.as_storage_options()
    spelt = {option_identity(name): name for name in storage_options}
    doubled = [spelt[key] for name in typed if (key := option_identity(name)) in spelt]
    if doubled:
        raise InvalidInputError(f"LanceResource gets {doubled[0]!r} in storage_options and in {field}; give it once")
    return {**storage_options, **typed}
