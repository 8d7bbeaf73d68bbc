"""The fields of resources: refusal of unknown names, typed options of the storage provider, and which are secrets.

S3 and servers with its interface are the only object storage that a table can be on. Local disk needs no options.
"""

import difflib
from collections.abc import Iterator, Mapping

import dagster as dg
from pydantic import ConfigDict, Field

from lance_dagster.errors import InvalidInputError

_AWS = "aws_"
# Options of pylance, without the optional prefix `aws_`.
_SECRETS = frozenset({"secret_access_key", "session_token", "token"})


def check_fields(model: type[dg.Config], fields: Mapping[str, object]) -> None:
    """Refuse names that are no fields of a resource; pydantic would ignore them silently.

    Raises:
        InvalidInputError: A name is unknown. The message suggests the nearest field.
    """
    known = sorted(model.model_fields)
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"fields: {', '.join(known)}"
            raise InvalidInputError(f"{model.__name__} has no field {name!r}; {meant}")


class S3Options(dg.Config):
    """How to reach an S3 bucket. Give secrets as `dg.EnvVar`: Dagster shows other values on the resource's page.

    Fields that are left out are taken from the environment and the files of the AWS tools.

    Example:
        >>> options = S3Options(region="eu-central-1", secret_access_key=dg.EnvVar("AWS_SECRET"))
        >>> options.as_storage_options()["aws_region"]
        'eu-central-1'
    """

    # Pydantic quotes a rejected value in its error, and the value may be a credential.
    model_config = ConfigDict(hide_input_in_errors=True)

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

    def __init__(self, **fields: object) -> None:
        """Refuse unknown fields when the options are constructed."""
        check_fields(type(self), fields)
        super().__init__(**fields)

    def as_storage_options(self) -> dict[str, str]:
        """Return the options in pylance's vocabulary, without the fields that are left out."""
        texts = {
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "aws_session_token": self.session_token,
            "aws_region": self.region,
            "aws_endpoint": self.endpoint,
        }
        flags = {
            "allow_http": self.allow_http,
            "skip_signature": self.anonymous,
            "aws_virtual_hosted_style_request": self.virtual_hosted_style,
        }
        return {key: value for key, value in texts.items() if value} | {
            key: "true" for key, value in flags.items() if value
        }


def literal_secrets(storage_options: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of secret options whose values are written in the definitions, and not as `dg.EnvVar`."""
    for name, value in storage_options.items():
        # An option of one base path is written base_<id>.<option>.
        plain = name.rpartition(".")[2].lower().removeprefix(_AWS)
        if plain in _SECRETS and value and not isinstance(value, dg.EnvVar):
            yield name


def merge_options(storage_options: Mapping[str, str], s3: S3Options | None) -> dict[str, str]:
    """Return the storage options together with the typed ones.

    Raises:
        InvalidInputError: An option is given both ways.
    """
    typed = s3.as_storage_options() if s3 else {}
    given = {name.lower().removeprefix(_AWS): name for name in storage_options}
    doubled = [given[key] for name in typed if (key := name.removeprefix(_AWS)) in given]
    if doubled:
        raise InvalidInputError(f"LanceResource gets {doubled[0]!r} in storage_options and in s3; give it once")
    return {**storage_options, **typed}
