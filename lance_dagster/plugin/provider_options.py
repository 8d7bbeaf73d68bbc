"""Credentials and endpoints of storage providers as typed options of a resource, and which of them are secrets.

Every field becomes an option under pylance's name, which the rest of the package uses.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import ClassVar

import dagster as dg
from pydantic import ConfigDict, Field

from lance_dagster.errors import InvalidInputError


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


class S3Options(ProviderOptions):
    """Options to reach an S3 bucket. Give secrets as `dg.EnvVar`: Dagster shows other values on the resource's page.

    Fields that are left out are taken from the environment and the files of the AWS tools.

    Examples:
        >>> options = S3Options(region="eu-central-1", secret_access_key=dg.EnvVar("AWS_SECRET"))
        >>> options.as_storage_options()["aws_region"]
        'eu-central-1'
    """

    OPTIONS: ClassVar[Mapping[str, str]] = {
        "access_key_id": "aws_access_key_id",
        "secret_access_key": "aws_secret_access_key",
        "session_token": "aws_session_token",
        "region": "aws_region",
        "endpoint": "aws_endpoint",
        "allow_http": "allow_http",
        "anonymous": "skip_signature",
        "virtual_hosted_style": "aws_virtual_hosted_style_request",
    }

    access_key_id: str = Field(default="", description="The id of the access key.")
    secret_access_key: str = Field(default="", repr=False, description="The access key; give it as EnvVar.")
    session_token: str = Field(default="", repr=False, description="Token of temporary credentials; give it as EnvVar.")
    region: str = Field(default="", description="The region of the bucket.")
    endpoint: str = Field(default="", description="URL of a server other than AWS.")
    allow_http: bool = Field(default=False, description="Whether the endpoint may be plain http.")
    anonymous: bool = Field(default=False, description="Whether requests are not signed, for public buckets.")
    virtual_hosted_style: bool = Field(
        default=False, description="Whether the endpoint resolves bucket names as host names."
    )


class AzureOptions(ProviderOptions):
    """Options to reach a container of Azure Blob Storage. Give secrets as `dg.EnvVar`.

    Without a key, a signature or a secret, the identity of the machine is used: the environment, a managed identity,
    or the user who is logged in with Azure's tools.

    Examples:
        >>> AzureOptions(account_name="lake", account_key=dg.EnvVar("LAKE_KEY")).as_storage_options()["account_name"]
        'lake'
    """

    OPTIONS: ClassVar[Mapping[str, str]] = {
        "account_name": "account_name",
        "account_key": "account_key",
        "sas_token": "sas_token",
        "tenant_id": "tenant_id",
        "client_id": "client_id",
        "client_secret": "client_secret",
        "use_azure_cli": "use_azure_cli",
        "endpoint": "azure_storage_endpoint",
        "allow_http": "allow_http",
        "anonymous": "skip_signature",
    }

    account_name: str = Field(default="", description="The storage account.")
    account_key: str = Field(default="", repr=False, description="A key of the account; give it as EnvVar.")
    sas_token: str = Field(default="", repr=False, description="A shared access signature; give it as EnvVar.")
    tenant_id: str = Field(default="", description="The tenant of a service principal.")
    client_id: str = Field(default="", description="The id of a service principal.")
    client_secret: str = Field(default="", repr=False, description="Its secret; give it as EnvVar.")
    use_azure_cli: bool = Field(default=False, description="Whether the user who is logged in with `az login` is used.")
    endpoint: str = Field(default="", description="URL of the account where it is not Azure's, such as an emulator.")
    allow_http: bool = Field(default=False, description="Whether the endpoint may be plain http.")
    anonymous: bool = Field(default=False, description="Whether requests are not signed, for public containers.")


class GoogleOptions(ProviderOptions):
    """Options to reach a bucket of Google Cloud Storage. Give secrets as `dg.EnvVar`.

    Without a service account, the application default credentials of the machine are used.

    Examples:
        >>> GoogleOptions(service_account="/etc/lake.json").as_storage_options()
        {'google_service_account': '/etc/lake.json'}
    """

    OPTIONS: ClassVar[Mapping[str, str]] = {
        "service_account": "google_service_account",
        "service_account_key": "google_service_account_key",
        "storage_token": "google_storage_token",
        "endpoint": "google_base_url",
        "allow_http": "allow_http",
        "anonymous": "google_skip_signature",
    }

    service_account: str = Field(default="", description="Path of the JSON file of a service account's key.")
    service_account_key: str = Field(default="", repr=False, description="The key itself; give it as EnvVar.")
    storage_token: str = Field(default="", repr=False, description="A short-lived token; give it as EnvVar.")
    endpoint: str = Field(default="", description="URL of a server other than Google's.")
    allow_http: bool = Field(default=False, description="Whether the endpoint may be plain http.")
    anonymous: bool = Field(default=False, description="Whether requests are not signed, for public buckets.")


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
