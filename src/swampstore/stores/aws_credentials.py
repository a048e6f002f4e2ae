"""Where credentials for S3 come from, in the order that AWS tools look for them.

The client itself knows web identities, containers and instances; what it does not know are the
files of `~/.aws`. Looking for an instance's credentials costs a request to a link-local address,
so it is not done where AWS_EC2_METADATA_DISABLED says so; that decision concerns one client and
never touches the environment of the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swampstore.stores.config_fields import Fields
from swampstore.stores.errors import StoreCredentialsError

_CLIENT_FINDS = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_NEEDS_TOOLS = frozenset({"credential_process", "role_arn", "source_profile"})


@dataclass(frozen=True, slots=True)
class AwsCredentials:
    """A key pair, with the token of the session if there is one."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def find_credentials(
    fields: Fields, environ: Mapping[str, str]
) -> tuple[AwsCredentials | None, str]:
    """Return the credentials and the region, from the configuration, environment or profile.

    None means that the client finds them by itself. Raises StoreCredentialsError if there is no
    place left to look.
    """
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    if fields.text("accessKeyId"):
        return _pair(fields.text, "accessKeyId", "secretAccessKey", "sessionToken"), region
    if environ.get("AWS_ACCESS_KEY_ID"):
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        return _pair(lambda name: environ.get(name, ""), *names), region
    profile = _profile(environ)
    region = region or profile.get("region", "")
    if profile.get("aws_access_key_id"):
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        return _pair(lambda name: profile.get(name, ""), *names), region
    _check_profile_is_plain(profile, environ)
    if not any(environ.get(name) for name in _CLIENT_FINDS):
        _check_instance_may_be_asked(environ)
    return None, region


def _pair(read: Callable[[str], str], key: str, secret: str, token: str) -> AwsCredentials:
    if not read(secret):
        raise StoreCredentialsError(
            f"{key} is set, {secret} is not", hint=f"Set {secret}, or remove {key}."
        )
    return AwsCredentials(read(key), read(secret), read(token))


def _check_profile_is_plain(profile: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Refuse a profile that needs the AWS tools, rather than look for credentials elsewhere."""
    if any(member.startswith("sso_") or member in _NEEDS_TOOLS for member in profile):
        name = environ.get("AWS_PROFILE") or "default"
        raise StoreCredentialsError(
            f"the AWS profile {name!r} holds no keys, only where the AWS tools get them",
            hint=f"Run `aws sso login --profile '{name}'` if it is a single sign-on, then "
            f"`eval $(aws configure export-credentials --profile '{name}' --format env)`.",
        )


def _check_instance_may_be_asked(environ: Mapping[str, str]) -> None:
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise StoreCredentialsError(
            "no credentials for S3: none in the environment, none in the AWS profile, and "
            "AWS_EC2_METADATA_DISABLED forbids to ask the machine for some",
            hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`; for a "
            "single sign-on session, `eval $(aws configure export-credentials --format env)`.",
        )


def _profile(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the members of the chosen profile in both of the AWS files."""
    import configparser

    name = environ.get("AWS_PROFILE") or "default"
    home = f"{environ.get('HOME', '')}/.aws"
    credentials = environ.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/credentials"
    config = environ.get("AWS_CONFIG_FILE") or f"{home}/config"
    sections = ((config, name if name == "default" else f"profile {name}"), (credentials, name))
    members: dict[str, str] = {}
    for path, section in sections:
        parser = configparser.RawConfigParser()
        try:
            if os.path.isfile(path):
                parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise StoreCredentialsError(
                f"{path} cannot be read: {error}", hint="Repair it."
            ) from error
        if parser.has_section(section):
            members.update(parser.items(section))
    return members
