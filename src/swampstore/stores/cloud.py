"""What sets one cloud's buckets apart from another's, for the one class that serves them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
