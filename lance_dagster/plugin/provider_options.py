"""Credentials and endpoints of storage providers as typed options of a resource, and which of them are secrets.

Every field becomes an option under pylance's name, which the rest of the package uses, and is declared with that name.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
from pydantic import ConfigDict, Field

from lance_dagster.errors import InvalidInputError

# The entry of a field that has pylance's name of the option.
_OPTION = "option"


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
        options = {
            str(extra[_OPTION]): getattr(self, name)
            for name, field in type(self).model_fields.items()
            if isinstance(extra := field.json_schema_extra, dict)
        }
        return {option: "true" if value is True else value for option, value in options.items() if value}


def _text(option: str, description: str, *, secret: bool = False) -> Any:  # noqa: ANN401  # the value of a field
    """Return the field of an option by pylance's name, whose value is a text and may be a secret."""
    description = f"{description[:-1]}; give it as EnvVar." if secret else description
    return Field(default="", repr=not secret, description=description, json_schema_extra={_OPTION: option})


def _flag(option: str, description: str) -> Any:  # noqa: ANN401  # the value of a field
    """Return the field of an option by pylance's name, whose value is true or left out."""
    return Field(default=False, description=description, json_schema_extra={_OPTION: option})


class S3Options(ProviderOptions):
    """Options to reach an S3 bucket. Give secrets as `dg.EnvVar`: Dagster shows other values on the resource's page.

    Fields that are left out are taken from the environment and the files of the AWS tools.

    Example:
        >>> options = S3Options(region="eu-central-1", secret_access_key=dg.EnvVar("AWS_SECRET"))
        >>> options.as_storage_options()["aws_region"]
        'eu-central-1'
    """

    access_key_id: str = _text("aws_access_key_id", "The id of the access key.")
    secret_access_key: str = _text("aws_secret_access_key", "The access key.", secret=True)
    session_token: str = _text("aws_session_token", "Token of temporary credentials.", secret=True)
    region: str = _text("aws_region", "The region of the bucket.")
    endpoint: str = _text("aws_endpoint", "URL of a server other than AWS.")
    allow_http: bool = _flag("allow_http", "Whether the endpoint may be plain http.")
    anonymous: bool = _flag("skip_signature", "Whether requests are not signed, for public buckets.")
    virtual_hosted_style: bool = _flag(
        "aws_virtual_hosted_style_request", "Whether the endpoint resolves bucket names as host names."
    )


class AzureOptions(ProviderOptions):
    """Options to reach a container of Azure Blob Storage. Give secrets as `dg.EnvVar`.

    Without a key, a signature or a secret, the identity of the machine is used: the environment, a managed identity,
    or the user who is logged in with Azure's tools.

    Example:
        >>> AzureOptions(account_name="lake", account_key=dg.EnvVar("LAKE_KEY")).as_storage_options()["account_name"]
        'lake'
    """

    account_name: str = _text("account_name", "The storage account.")
    account_key: str = _text("account_key", "A key of the account.", secret=True)
    sas_token: str = _text("sas_token", "A shared access signature.", secret=True)
    tenant_id: str = _text("tenant_id", "The tenant of a service principal.")
    client_id: str = _text("client_id", "The id of a service principal.")
    client_secret: str = _text("client_secret", "Its secret.", secret=True)
    use_azure_cli: bool = _flag("use_azure_cli", "Whether the user who is logged in with `az login` is used.")
    endpoint: str = _text("azure_storage_endpoint", "URL of the account where it is not Azure's, such as an emulator.")
    allow_http: bool = _flag("allow_http", "Whether the endpoint may be plain http.")
    anonymous: bool = _flag("skip_signature", "Whether requests are not signed, for public containers.")


class GoogleOptions(ProviderOptions):
    """Options to reach a bucket of Google Cloud Storage. Give secrets as `dg.EnvVar`.

    Without a service account, the application default credentials of the machine are used.

    Example:
        >>> GoogleOptions(service_account="/etc/lake.json").as_storage_options()
        {'google_service_account': '/etc/lake.json'}
    """

    service_account: str = _text("google_service_account", "Path of the JSON file of a service account's key.")
    service_account_key: str = _text("google_service_account_key", "The key itself.", secret=True)
    storage_token: str = _text("google_storage_token", "A short-lived token.", secret=True)
    endpoint: str = _text("google_base_url", "URL of a server other than Google's.")
    allow_http: bool = _flag("allow_http", "Whether the endpoint may be plain http.")
    anonymous: bool = _flag("google_skip_signature", "Whether requests are not signed, for public buckets.")


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
