"""What sets one cloud's buckets apart from another's, and what their errors mean.

The client tells a status only inside its text, so that is where it is read from. No status at
all means that no answer came (refused, reset, timed out, no such host): that is transient.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from swampstore.redaction import without_credentials
from swampstore.stores.errors import (
    CorruptObjectError,
    StoreCredentialsError,
    StoreError,
    StoreMissingError,
    StorePermissionError,
    StoreUnreachableError,
    not_found,
)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>(.*?)</Message>")
_QUERY = re.compile(r"(https?://[^\s?]+)\?\S+")
# Where clients on cloud machines fetch credentials; a failure there means that there are none.
_CREDENTIAL_SOURCES = ("169.254.", "fd00:ec2", "computeMetadata", "token request", "credential")
_MISSING = frozenset({"NoSuchBucket", "ContainerNotFound"})
_REJECTED = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthenticationFailed", "InvalidAccessKey"}
)
_NOT_AUTHENTICATED = "failed to authenticate"  # Azure says so under several codes
_REDIRECTED = "Received redirect"  # carries no status, and is the answer to a wrong region
_BAD_KEY = "object with invalid path"
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_ABOUT_ONE_OBJECT = frozenset({"get", "head", "copy", "delete"})
_LONGEST_TEXT = 500


@dataclass(frozen=True, slots=True)
class Remedies:
    """What a user of this cloud does about missing credentials and missing permissions."""

    sign_in: str
    permissions: str


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket below a prefix, and how its cloud does things.

    `condition` names the member of an object's description that conditional writes go by.
    `clock_url` answers anybody with a Date header, even if only to refuse. `signs` says that the
    client can sign URLs with what it has, so that we can send requests that it does not know,
    `signs_headers` that the service refuses headers that were not signed. `largest` is how many
    bytes it takes in one request. `repeats_tokens` is told by `Capabilities`.
    """

    identity: str
    condition: Literal["e_tag", "version"]
    clock_url: str
    timeout: float
    remedies: Remedies
    signs: bool
    largest: int
    repeats_tokens: bool = False
    signs_headers: bool = False


class Reply(NamedTuple):
    """What can be made out of a client's error. No status: there was no reply."""

    status: int | None
    code: str
    text: str
    told: str


# What the client says where the service has no words for it.
_TOO_SHORT = "Wanted range starting at"


def translate(error: Exception, bucket: Bucket, operation: str, key: str) -> StoreError:
    """Return the error to raise instead of the client's."""
    reply = _read(error)
    what = f"{operation} {key}".strip()
    if _is_about_credentials(reply):
        return _credentials(reply, bucket, what)
    if reply.status == 404 and reply.code not in _MISSING and operation in _ABOUT_ONE_OBJECT:
        return not_found(key, bucket.identity)
    if reply.status == 404:
        return StoreMissingError(
            f"{bucket.identity} does not exist ({what}: {reply.told})",
            hint="Check the bucket's name, region and endpoint, or create it.",
        )
    if reply.status == 416 or _TOO_SHORT in reply.text:
        return CorruptObjectError(
            f"{key} in {bucket.identity} is shorter than expected",
            hint="It was replaced meanwhile, or damaged.",
        )
    if _is_transient(reply):
        return StoreUnreachableError(
            f"{bucket.identity} did not complete {what}: {reply.told}",
            hint="Check the network and the endpoint, then try again; nothing was lost.",
        )
    return _refusal(reply, bucket, what)


def unusable(error: Exception, bucket: Bucket) -> StoreCredentialsError:
    """Return the error to raise if no client can be made: the credentials given make no sense."""
    told = _read(error).told
    return StoreCredentialsError(
        f"{bucket.identity} cannot be opened with the credentials that are set: {told}",
        hint=bucket.remedies.sign_in,
    )


def _read(error: Exception) -> Reply:
    status, code = _STATUS.search(str(error)), _CODE.search(str(error))
    # The first paragraph, without query strings: a signature may be among them.
    text = str(error).partition("\n\nDebug source")[0]
    text = " ".join(without_credentials(_QUERY.sub(r"\1?...", text)).split())
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}..."
    return Reply(int(status[1]) if status else None, code[1] if code else "", text, _told(text))


def _told(text: str) -> str:
    """Return what people are told of an answer: of one in XML its message, and nothing else."""
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if message:
        return f"{code[1]}: {message[1]}" if code else message[1]
    return text.partition("<?xml")[0].rstrip(" :") or text


def _is_about_credentials(reply: Reply) -> bool:
    if reply.code in _EXPIRED or _is_rejection(reply):
        return True
    by_the_store = bool(reply.code) or reply.status == 404
    return not by_the_store and any(sign in reply.text for sign in _CREDENTIAL_SOURCES)


def _is_rejection(reply: Reply) -> bool:
    return reply.status == 401 or reply.code in _REJECTED or _NOT_AUTHENTICATED in reply.text


def _is_transient(reply: Reply) -> bool:
    if reply.status is None:
        return _REDIRECTED not in reply.text and _BAD_KEY not in reply.text
    if reply.status == 501:  # it will not learn that by being asked again
        return False
    return reply.status in {408, 409, 429} or reply.status >= 500


def _credentials(reply: Reply, bucket: Bucket, what: str) -> StoreCredentialsError:
    if reply.code in _EXPIRED or "invalid_grant" in reply.text:
        problem = "the session has expired"
    elif _is_rejection(reply):
        problem = "the credentials were rejected"
    else:
        problem = "no credentials were found"
    return StoreCredentialsError(
        f"{problem} for {bucket.identity} ({what}: {reply.told})", hint=bucket.remedies.sign_in
    )


def _refusal(reply: Reply, bucket: Bucket, what: str) -> StoreError:
    if reply.status == 403:
        return StorePermissionError(
            f"{bucket.identity} refused {what}: {reply.told}",
            hint=f"The credentials need {bucket.remedies.permissions}; without the right to list, "
            "even a missing object is refused.",
        )
    if _BAD_KEY in reply.text:
        return StoreError(
            f"{bucket.identity} holds an object that no path can name ({what}: {reply.told})",
            hint="It was put there by another program: rename or remove it with that one.",
        )
    return StoreError(
        f"{bucket.identity} refused {what}: {reply.told}",
        hint="Check the endpoint, the region and the bucket's settings.",
    )
