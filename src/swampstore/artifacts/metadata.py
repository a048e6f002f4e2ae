"""`metadata.yaml`: what is known about one version of one artifact, and its rules.

Also what a content type says about how content can be read.
"""

from __future__ import annotations

import re
import reprlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from swampstore import yaml_dialect
from swampstore.errors import MetadataError, SwampstoreError, ValidationError
from swampstore.formats import LARGEST_NUMBER
from swampstore.layout import LARGEST_VERSION
from swampstore.notices import did_you_mean, sentences
from swampstore.retention.lifetimes import normalise_lifetime, normalise_policy

_TEXT_TYPES = frozenset({"application/json", "application/yaml", "application/x-yaml"})


def is_json(content_type: str) -> bool:
    """Whether content of this type is a JSON document."""
    return content_type.partition(";")[0].strip().lower() == "application/json"


def is_text(content_type: str) -> bool:
    """Whether content of this type can be shown as text."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind in _TEXT_TYPES


def guess_content_type(file_name: str) -> str:
    """Return the content type that a file's name suggests."""
    if file_name.endswith((".yaml", ".yml")):
        return "application/yaml"
    import mimetypes

    guessed, encoding = mimetypes.guess_type(file_name)
    return guessed if guessed and not encoding else "application/octet-stream"


OWNER_TYPES = ("model-method", "workflow-step", "manual")
DELETED = "deleted"
DEFAULT_LIFETIME = "infinite"
DEFAULT_POLICY = 10
_OWNER_FIELDS = (
    ("workflow_id", "workflowId"),
    ("workflow_run_id", "workflowRunId"),
    ("workflow_name", "workflowName"),
    ("job_name", "jobName"),
    ("step_name", "stepName"),
    ("source", "source"),
)
_KNOWN = frozenset(
    [
        "id",
        "name",
        "version",
        "contentType",
        "lifetime",
        "garbageCollection",
        "streaming",
        "tags",
        "ownerDefinition",
        "createdAt",
        "size",
        "checksum",
        "lifecycle",
        "renamedTo",
    ]
)
_KNOWN_OWNER = frozenset(["ownerType", "ownerRef", *(key for _, key in _OWNER_FIELDS)])
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?")


@dataclass(frozen=True, slots=True)
class Owner:
    """Who may write further versions of a data name, and the run that wrote this one."""

    type: str = "manual"
    ref: str = ""
    workflow_id: str = ""
    workflow_run_id: str = ""
    workflow_name: str = ""
    job_name: str = ""
    step_name: str = ""
    source: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def same_as(self, other: Owner) -> bool:
        """Whether both are the same owner, whatever run they wrote in."""
        return (self.type, self.ref) == (other.type, other.ref)

    def to_json(self) -> dict[str, Any]:
        """Return the members of `ownerDefinition`."""
        members: dict[str, Any] = {"ownerType": self.type, "ownerRef": self.ref}
        members |= {key: value for name, key in _OWNER_FIELDS if (value := getattr(self, name))}
        return {**members, **self.extra}


@dataclass(frozen=True, slots=True)
class Metadata:
    """One version's metadata. Members that we do not know are kept in `extra`."""

    id: str
    name: str
    version: int
    content_type: str
    lifetime: str
    garbage_collection: int | str
    streaming: bool
    tags: Mapping[str, str]
    owner: Owner
    created_at: str
    size: int | None = None
    checksum: str | None = None
    lifecycle: str = ""
    renamed_to: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_deleted(self) -> bool:
        """Whether this version says that the data is gone."""
        return self.lifecycle == DELETED

    def allows(self, size: int, sha256: str | None = None) -> bool:
        """Whether content of this size and hash (None: not known) can be what this speaks of.

        Whoever appends writes content first: to what streams, something may have been added since.
        """
        if self.checksum and self.checksum == sha256:
            return True
        if self.streaming and self.size is not None and size > self.size:
            return True
        if self.checksum and sha256:
            return False
        return self.size is None or size == self.size

    def may_be_appended_to(self, size: int) -> bool:
        """Whether content of this size, read a moment before this was, may be growing just now.

        Then its hash proves nothing: the content may be ahead of the metadata, or behind it.
        """
        return self.streaming and size != self.size

    def to_json(self) -> dict[str, Any]:
        """Return the members of the document in their order."""
        members: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "version": self.version,
            "contentType": self.content_type,
            "lifetime": self.lifetime,
            "garbageCollection": self.garbage_collection,
            "streaming": self.streaming,
            "tags": dict(self.tags),
            "ownerDefinition": self.owner.to_json(),
            "createdAt": self.created_at,
            "size": self.size,
            "checksum": self.checksum,
            "lifecycle": self.lifecycle or None,
            "renamedTo": self.renamed_to or None,
        }
        return {
            **{key: value for key, value in members.items() if value is not None},
            **self.extra,
        }


@dataclass(frozen=True, slots=True)
class Draft:
    """What a writer says about a new version; the store adds the rest.

    Without an owner, whoever owns the name goes on owning it. A draft that `inherits` keeps the
    model's name and the user's own tags of the version before, but for those in `without`.
    """

    content_type: str = "application/octet-stream"
    lifetime: str = DEFAULT_LIFETIME
    garbage_collection: int | str = DEFAULT_POLICY
    streaming: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    owner: Owner | None = None
    lifecycle: str = ""
    renamed_to: str = ""
    id: str = ""
    inherits: bool = False
    without: frozenset[str] = frozenset()
    is_type_guessed: bool = False

    def checked(self) -> Draft:
        """Return the draft with its values in their canonical form; raise ValidationError."""
        tags = {"type": "resource" if is_json(self.content_type) else "file", **self.tags}
        return replace(
            self,
            content_type=_checked_content_type(self.content_type),
            lifetime=normalise_lifetime(self.lifetime),
            garbage_collection=normalise_policy(self.garbage_collection),
            tags=checked_tags(tags),
            owner=self.owner and _checked_owner(self.owner),
            id=self.id or str(uuid.uuid4()),
            is_type_guessed="type" not in self.tags,
        )

    def following(self, newest: Metadata | None) -> Draft:
        """Return the (checked) draft with what it keeps of the version before.

        Raises ValidationError if it is to be without a tag that is not there.
        """
        kept = _kept_tags(newest) if newest is not None and self.inherits else {}
        for key in sorted(self.without):
            if key not in kept:
                raise ValidationError(
                    sentences(f"there is no tag {key!r} to be removed.", did_you_mean(key, kept)),
                    hint=f"Tags: {', '.join(kept)}." if kept else "It has no tags of its own.",
                )
            del kept[key]
        tags = {**kept, **self.tags}
        if self.is_type_guessed and "type" in kept:
            tags["type"] = kept["type"]
        return replace(self, tags=tags)

    def metadata(
        self, name: str, version: int, owner: Owner, created_at: str, size: int, checksum: str
    ) -> Metadata:
        """Return the metadata of the version that this (checked) draft became."""
        return Metadata(
            id=self.id,
            name=name,
            version=version,
            content_type=self.content_type,
            lifetime=self.lifetime,
            garbage_collection=self.garbage_collection,
            streaming=self.streaming,
            tags=self.tags,
            owner=owner,
            created_at=created_at,
            size=size,
            checksum=checksum,
            lifecycle=self.lifecycle,
            renamed_to=self.renamed_to,
        )


# They say which run or step wrote a version, so they are no tags of the next one.
RUN_TAGS = frozenset(
    {
        *("source", "workflow", "workflowId", "workflowRunId", "job", "step", "initiatedBy"),
        *("reportName", "reportScope"),
    }
)
_LASTING = ("modelName", "specName")
_GUESSED_TYPES = frozenset({"resource", "file", "report"})


def _kept_tags(newest: Metadata) -> dict[str, str]:
    """Return the tags of a version that the next one has as well, unless it is told otherwise."""
    is_of_step = newest.tags.get("source") == "step-output" or "workflowRunId" in newest.tags
    if is_of_step or newest.is_deleted:
        # Which of them are the workflow's cannot be told; and what is gone begins anew.
        return {key: newest.tags[key] for key in _LASTING if key in newest.tags}
    return {
        key: value
        for key, value in newest.tags.items()
        if key not in RUN_TAGS and not (key == "type" and value in _GUESSED_TYPES)
    }


def encode(metadata: Metadata) -> bytes:
    """Return the bytes of `metadata.yaml`."""
    return yaml_dialect.dump(metadata.to_json()).encode()


def decode(data: bytes, what: str) -> Metadata:
    """Read `metadata.yaml`; raise MetadataError naming `what` and the member that is wrong."""
    try:
        return _from_json(yaml_dialect.load_mapping(data, what=what))
    except MetadataError as error:
        raise MetadataError(f"{what}: {error.message}", hint=error.hint) from None
    except SwampstoreError as error:
        message = error.message if what in error.message else f"{what}: {error.message}"
        raise MetadataError(message, hint=error.hint) from error


def _from_json(raw: dict[str, Any]) -> Metadata:
    version = raw.get("version")
    if type(version) is not int or not 0 < version <= LARGEST_VERSION:
        raise _wrong("version", version, f"a whole number from 1 to {LARGEST_VERSION}")
    tags = raw.get("tags")
    if type(tags) is not dict or not all(
        type(value) is str and "\0" not in value and "\0" not in key for key, value in tags.items()
    ):
        raise _wrong("tags", tags, "a mapping of strings without NUL")
    if "type" not in tags:
        raise _wrong("tags", tags, "a mapping with the key 'type'")
    created_at = _text(raw, "createdAt")
    if not _TIMESTAMP.fullmatch(created_at):
        raise _wrong("createdAt", created_at, "an ISO-8601 time")
    size = raw.get("size")
    if size is not None and (type(size) is not int or not 0 <= size <= LARGEST_NUMBER):
        raise _wrong("size", size, f"a whole number of bytes up to {LARGEST_NUMBER}")
    streaming = raw.get("streaming", False)
    if type(streaming) is not bool:
        raise _wrong("streaming", streaming, "true or false")
    policy = raw.get("garbageCollection")
    if type(policy) is not int and type(policy) is not str:
        raise _wrong("garbageCollection", policy, "a positive number or a duration")
    return Metadata(
        id=_text(raw, "id"),
        name=_text(raw, "name"),
        version=version,
        content_type=_text(raw, "contentType"),
        lifetime=normalise_lifetime(_text(raw, "lifetime")),
        garbage_collection=normalise_policy(policy),
        streaming=streaming,
        tags=tags,
        owner=_owner_from_json(raw.get("ownerDefinition")),
        created_at=created_at,
        size=size,
        checksum=_text(raw, "checksum") if "checksum" in raw else None,
        lifecycle=_text(raw, "lifecycle") if "lifecycle" in raw else "",
        renamed_to=_text(raw, "renamedTo") if "renamedTo" in raw else "",
        extra={} if _KNOWN.issuperset(raw) else {k: v for k, v in raw.items() if k not in _KNOWN},
    )


def _owner_from_json(raw: object) -> Owner:
    if type(raw) is not dict:
        raise _wrong("ownerDefinition", raw, "a mapping")
    values = {name: _text(raw, key) for name, key in _OWNER_FIELDS if key in raw}
    extra = {} if _KNOWN_OWNER.issuperset(raw) else _unknown(raw, _KNOWN_OWNER)
    ref = raw.get("ownerRef", "")
    if type(ref) is not str:
        raise _wrong("ownerRef", ref, "a string")
    return Owner(type=_text(raw, "ownerType"), ref=ref, extra=extra, **values)


def _unknown(raw: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in known}


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    if type(value) is not str or not value:
        raise _wrong(key, value, "a non-empty string")
    return value


def _wrong(key: str, value: object, expected: str) -> MetadataError:
    found = "missing" if value is None else reprlib.repr(value)[:80]
    return MetadataError(
        f"{key} is {found}, expected {expected}",
        hint="Restore the file from a backup, or delete that version.",
    )


def _checked_content_type(value: str) -> str:
    if not value.strip() or any(ord(char) < 32 for char in value):
        raise ValidationError(
            f"the content type {value!r} is not a MIME type", hint="Use for example text/plain."
        )
    return value


def checked_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags that can be saved; raise ValidationError naming the one that cannot."""
    for key, value in tags.items():
        if type(key) is not str or type(value) is not str or not key:
            raise ValidationError(
                f"the tag {key!r}: {value!r} is not a pair of strings",
                hint="Tags are strings; turn numbers into text first.",
            )
        if "\0" in key or "\0" in value or _has_surrogate(key) or _has_surrogate(value):
            raise ValidationError(
                f"the tag {key!r}: {value!r} holds a NUL or is not valid UTF-8",
                hint="Give tags as UTF-8 text.",
            )
    return dict(tags)


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _checked_owner(owner: Owner) -> Owner:
    if owner.type not in OWNER_TYPES:
        raise ValidationError(
            f"the owner type {owner.type!r} is unknown",
            hint=f"Use one of {', '.join(OWNER_TYPES)}.",
        )
    return owner
