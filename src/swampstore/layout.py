"""Pure path rules: names, addresses and the files that never leave a machine.

Nothing here touches a disk. Relative paths ("rel") use `/` on every system and start at the
datastore base, after the namespace.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from swampstore.errors import ValidationError
from swampstore.notices import escaped

MARKER = ".swamp.yaml"
# Lies in the directory of a namespace, and says whose it is.
MANIFEST = ".namespace.json"
LOCAL_DIR = ".swamp"
# What runs on this machine, in the local tier; other clients use the same file.
RUN_TRACKER = "run_tracker.db"
METADATA = "metadata.yaml"
RAW = "raw"
LATEST = "latest"
# Lies beside the metadata of a version that is written but not yet committed. Every client
# already keeps names with this prefix out of any sync, so the mark stays on its machine.
DEFERRED = "_catalog.db-deferred"
# Lies in the directory of a version that is being written here, or waits for its commit: whoever
# does that has it locked, and nobody does if they are dead.
CLAIM = "_catalog.db-claim"
# Lies in the directory of a version whose content came from the remote before its metadata did,
# which tells it from the claim of somebody who is writing that version here.
LANDING = "_catalog.db-landing"

# What every client of a cache reads and writes about its unpushed changes. The member is in it for
# as long as only our own writes follow one another.
SIDECAR = ".datastore-sync-state.json"
SIDECAR_CHAIN = "swampstoreChain"
# What another client of a cache of a MongoDB datastore has marked, a path in each line.
FOREIGN_JOURNAL = ".datastore-dirty.log"
# In the local directory of a repository, while its settings may name another remote than the one
# whose cache is in its place.
EXCHANGE = "swampstore.exchange"

# The records of method runs and of workflow runs.
OUTPUTS, WORKFLOW_RUNS = "outputs", "workflow-runs"
# Definitions that no file of the repository has, and what expressions became of in a run.
AUTO_DEFINITIONS, EVALUATED_DEFINITIONS = "auto-definitions", "definitions-evaluated"
EVALUATED_WORKFLOWS = "workflows-evaluated"
AUDIT = "audit"
DATASTORE_SUBDIRS = (
    AUTO_DEFINITIONS,
    EVALUATED_DEFINITIONS,
    EVALUATED_WORKFLOWS,
    "data",
    OUTPUTS,
    WORKFLOW_RUNS,
    "secrets",
    "bundles",
    "vault-bundles",
    "driver-bundles",
    "report-bundles",
    AUDIT,
    "telemetry",
    "logs",
    "files",
)
ALWAYS_LOCAL_SUBDIRS = frozenset(
    {"secrets", "bundles", "vault-bundles", "driver-bundles", "report-bundles"}
)
# Another client builds these beside the cache; they are as little shared as all other bundles.
NEVER_SHARED = ALWAYS_LOCAL_SUBDIRS | {"datastore-bundles"}

MAX_SEGMENT_BYTES = 255
# What S3, GCS and Azure agree on, in bytes of UTF-8.
MAX_KEY_BYTES = 1024
_NO_KEY = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
# Far beyond any real type, and well within what paths and the walk over them can take.
MAX_TYPE_BYTES = 1024
MAX_TYPE_SEGMENTS = 32
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_TEMP = re.compile(r"\.[0-9a-f-]{36}\.tmp")
LARGEST_VERSION = 10**18 - 1
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
_INTERNAL_ROOT_FILES = frozenset(
    {".datastore-index.json", ".push-queue.json", ".datastore.lock", SIDECAR, FOREIGN_JOURNAL}
)
_INTERNAL_ROOT_DIRS = frozenset({"_index", "_control", ".locks"})


def is_temp(name: str) -> bool:
    """Whether a file or directory name is one that an interrupted write may leave behind."""
    return name[:1] == "." and _TEMP.fullmatch(name) is not None


def is_version(name: str) -> bool:
    """Whether a directory name stands for a version."""
    return _VERSION.fullmatch(name) is not None


def parse_version(name: str) -> int | None:
    """Return the version that a directory name stands for, None if it is no version."""
    return int(name) if _VERSION.fullmatch(name) else None


def is_plain(rel: str) -> bool:
    """Whether a path surely is neither bookkeeping nor a danger, told at a glance.

    There are a great many paths, and next to none of them begins a segment with `.` or `_`.
    """
    return not (
        rel[:1] in "/._"
        or rel[-1] == "/"
        or "/." in rel
        or "/_" in rel
        or "//" in rel
        or "\\" in rel
        or "\0" in rel
    )


def are_plain(rels: Collection[str]) -> bool:
    """Whether `is_plain` says so of each of many paths, told at a glance."""
    lines = "\n".join(rels)
    if "\0" in lines or "\\" in lines or lines.count("\n") != max(0, len(rels) - 1):
        return False
    segments = "\n".join(("", lines.replace("/", "\n"), ""))
    return not rels or not ("\n\n" in segments or "\n." in segments or "\n_" in segments)


def is_internal(rel: str) -> bool:
    """Whether a path is bookkeeping that never crosses between a cache and its remote."""
    if is_plain(rel):
        return False
    first, _, rest = rel.partition("/")
    last = rel.rpartition("/")[2]
    if rel in _INTERNAL_ROOT_FILES or first in _INTERNAL_ROOT_DIRS:
        return True
    if first not in DATASTORE_SUBDIRS and rest.partition("/")[0] in _INTERNAL_ROOT_DIRS:
        return True  # of a namespace, or what is left of one that was given up
    if last in (".lock", MANIFEST) or is_temp(last):
        return True
    if any(is_temp(segment) for segment in rest.split("/")) or is_temp(first):
        return True
    return last == "_catalog.db" or last.startswith("_catalog.db-")


def is_always_local(rel: str) -> bool:
    """Whether a path never leaves its machine, whatever the settings say.

    Neither in any spelling that some file system takes for one of those directories, nor below
    a directory at the top that is somebody's namespace, or may become one.
    """
    first, _, rest = rel.partition("/")
    if first in DATASTORE_SUBDIRS:
        return first in NEVER_SHARED
    return _folded(first) in NEVER_SHARED or _folded(rest.partition("/")[0]) in NEVER_SHARED


def _folded(name: str) -> str:
    """Return what is left of a name on a file system that does not mind how it is spelled."""
    import unicodedata

    text = unicodedata.normalize("NFKC", name).casefold()
    seen = "".join(char for char in text if unicodedata.category(char) not in ("Cf", "Cc"))
    return seen.strip(". ")


def why_no_key(path: str) -> str | None:
    """Return why no store can hold an object under a path, None if each can."""
    if _NO_KEY.search(path):
        return "it holds a control character, or is not valid UTF-8"
    if len(path.encode()) > MAX_KEY_BYTES:
        return f"it has more than {MAX_KEY_BYTES} bytes"
    return None


def check_shareable(ref: DataRef, prefix: str = "") -> None:
    """Raise ValidationError unless every file of a data name can be an object below a prefix.

    Everything that is saved passes through here: what no store takes could never be shared.
    """
    check_data_name(ref.name)
    if reason := why_no_key(f"{prefix}{ref.file_rel(LARGEST_VERSION, METADATA)}"):
        raise ValidationError(
            f"nothing can be saved as {escaped(ref)}: {reason}",
            hint="Use a shorter type, model id or data name."
            if "bytes" in reason
            else "Use letters, digits, '-', '_' and single dots.",
        )


def check_segment(what: str, value: str) -> str:
    """Return `value` if it can safely be one path segment; raise ValidationError otherwise.

    What is saved has to fulfil more, see `check_shareable`; but what was saved before that was a
    rule must be found, to be given another name.
    """
    if not value:
        raise ValidationError(f"the {what} is empty", hint=f"Give the {what} at least one letter.")
    if ".." in value or value == "." or any(char in value for char in "/\\\0"):
        raise ValidationError(
            f"the {what} {value!r} holds '..', a slash, a backslash or a NUL",
            hint="Use letters, digits, '-', '_' and single dots.",
        )
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise ValidationError(
            f"the {what} {value!r} is not valid UTF-8", hint="Give it as UTF-8 text."
        ) from None
    if length > MAX_SEGMENT_BYTES:
        raise ValidationError(
            f"the {what} {value[:40]!r}... is {length} bytes long",
            hint=f"A file system takes at most {MAX_SEGMENT_BYTES} bytes.",
        )
    return value


def check_model_name(name: str) -> str:
    """Return `name` if a model can be found by it, which is more than a new definition may have."""
    is_scoped = name.startswith("@") and "/" in name
    if not name:
        raise ValidationError("the name of the model is empty", hint="Give it at least one letter.")
    if ".." in name or "\\" in name or "\0" in name or ("/" in name and not is_scoped):
        raise ValidationError(
            f"the name {name!r} holds '..', a slash, a backslash or a NUL",
            hint="Use a-z, 0-9, '-' and '_', or @collective/name.",
        )
    return name


def check_data_name(name: str) -> str:
    """Return `name` if data may be saved under it."""
    check_segment("data name", name)
    if name.lower() == LATEST:
        raise ValidationError(
            f"the data name {name!r} is reserved for the marker of the latest version",
            hint="Choose another name.",
        )
    return _check_not_internal("data name", name)


def _check_not_internal(what: str, value: str) -> str:
    """Return `value` unless a directory of that name would be taken for bookkeeping."""
    if is_internal(f"data/{value}"):
        raise ValidationError(
            f"the {what} {value!r} is reserved for the datastore's own files",
            hint=f"Choose another {what}.",
        )
    return value


def check_namespace(slug: str) -> str:
    """Return `slug` if it is a namespace: lower-case letters, digits and inner hyphens."""
    if len(slug) > 64 or not _NAMESPACE.fullmatch(slug):
        raise ValidationError(
            f"{slug!r} is not a namespace",
            hint="Use 1 to 64 of a-z, 0-9 and '-', not starting or ending with '-'.",
        )
    return slug


EVERYWHERE = "*"
_NUMBERED = re.compile(r"(.+)@([0-9]{1,30})")
_QUALIFIED = re.compile(rf"({_NAMESPACE.pattern}|\*|):(?!:)(.*)", re.DOTALL)


def split_namespace(model: str) -> tuple[str, str]:
    """Split `NAMESPACE:MODEL`; the namespace is empty for the own one, `*` for all of them.

    >>> split_namespace("infra:web"), split_namespace("AWS::EC2::VPC/i-1")
    (('infra', 'web'), ('', 'AWS::EC2::VPC/i-1'))
    """
    found = _QUALIFIED.fullmatch(model) if ":" in model else None
    return (found[1], found[found.re.groups]) if found else ("", model)


def split_address(address: str) -> tuple[str, str, int | None]:
    """Split `MODEL/NAME[@VERSION]`; raise ValidationError for anything else.

    >>> split_address("aws/ec2/i-1/state@2"), split_address("web/state")
    (('aws/ec2/i-1', 'state', 2), ('web', 'state', None))
    """
    model, _, name = address.rpartition("/")
    if not model or not name:
        raise ValidationError(
            f"{address!r} does not name data of a model",
            hint="Write MODEL/NAME or MODEL/NAME@VERSION.",
        )
    numbered = _NUMBERED.fullmatch(name)
    return (model, numbered[1], int(numbered[2])) if numbered else (model, name, None)


@lru_cache(maxsize=4096)
def normalise_type(raw: str) -> str:
    """Return the one spelling of a model type, which is also its directory path.

    >>> normalise_type("AWS::EC2::VPC")
    'aws/ec2/vpc'
    """
    text = raw.strip().lower().replace("::", "/")
    text = re.sub(r"\s+", "/", text).replace(".", "/")
    text = re.sub(r"/+", "/", text).removeprefix("/").removesuffix("/")
    if not text:
        raise ValidationError(
            f"the model type {raw!r} is empty: there is nothing in it but separators",
            hint="A model is TYPE/ID, such as aws/ec2/i-0abc, and no path; see `swampstore ls`.",
        )
    segments = text.split("/")
    for segment in segments:
        check_segment("model type", segment)
    if len(segments) > MAX_TYPE_SEGMENTS or len(text.encode()) > MAX_TYPE_BYTES:
        raise ValidationError(
            f"the model type {text[:40]!r}... is too long",
            hint=f"Use at most {MAX_TYPE_SEGMENTS} segments and {MAX_TYPE_BYTES} bytes.",
        )
    return text


class ModelRef(NamedTuple):
    """The address of a model: its normalised type and its id."""

    type: str
    id: str

    @classmethod
    def of(cls, model_type: str, model_id: str) -> ModelRef:
        """Return the checked address of a model of any spelling of its type."""
        checked = check_segment("model id", model_id)
        return cls(normalise_type(model_type), _check_not_internal("model id", checked))

    @classmethod
    def parse(cls, text: str) -> ModelRef:
        """Split `TYPE/ID` at the last slash."""
        model_type, slash, model_id = text.rpartition("/")
        if not slash or not model_type or not model_id:
            raise ValidationError(
                f"{text!r} is not a model address",
                hint="Write TYPE/ID, for example aws/ec2/i-123.",
            )
        return cls.of(model_type, model_id)

    @property
    def rel(self) -> str:
        """The model's directory."""
        return f"data/{self.type}/{self.id}"

    def __str__(self) -> str:
        return f"{self.type}/{self.id}"


class DataRef(NamedTuple):
    """The address of one data name of one model."""

    model: ModelRef
    name: str

    @property
    def rel(self) -> str:
        """The directory that holds every version and the `latest` marker."""
        return f"data/{self.model.type}/{self.model.id}/{self.name}"

    @property
    def latest_rel(self) -> str:
        """The marker that names the latest version."""
        return f"{self.rel}/{LATEST}"

    def version_rel(self, version: int) -> str:
        """The directory of one version."""
        return f"{self.rel}/{version}"

    def file_rel(self, version: int, file: str) -> str:
        """One file of one version."""
        return f"{self.rel}/{version}/{file}"

    def __str__(self) -> str:
        return f"{self.model} {self.name}"


def ref_of(name_rel: str) -> DataRef:
    """Return the data name whose directory `name_rel` is.

    >>> ref_of("data/aws/ec2/i-1/state").model
    ModelRef(type='aws/ec2', id='i-1')
    """
    parts = name_rel.split("/")
    return DataRef(ModelRef("/".join(parts[1:-2]), parts[-2]), parts[-1])


# Records of runs -------------------------------------------------------------------------------

_RUN = "workflow-run-"
_YAML = ".yaml"
_LOG = ".log"
# Where other clients keep an index of them.
RUNS_INDEX = ".runs-index.json"
# The ids of a workflow and of a run of it go into this; for SQL too, where `format` is not known.
WORKFLOW_RUN_REL = f"{WORKFLOW_RUNS}/{{}}/{_RUN}{{}}{_YAML}"


def workflow_run_rel(workflow_id: str, run_id: str) -> str:
    """Return the path of the record of a workflow run; raise ValidationError for a wrong id."""
    check_segment("workflow id", workflow_id)
    check_segment("workflow run id", run_id)
    return WORKFLOW_RUN_REL.format(workflow_id, run_id)


def workflow_run_of(rel: str) -> tuple[str, str] | None:
    """Return the ids of the workflow and the run whose record a path is, None if it is none.

    >>> workflow_run_of("workflow-runs/w-1/workflow-run-r-1.yaml")
    ('w-1', 'r-1')
    """
    top, _, rest = rel.partition("/")
    workflow, slash, name = rest.partition("/")
    is_record = name.startswith(_RUN) and name.endswith(_YAML)
    if top != WORKFLOW_RUNS or not slash or "/" in name or not is_record or is_temp(name):
        return None
    return workflow, name.removeprefix(_RUN).removesuffix(_YAML)


def stays_beside_runs(rel: str) -> bool:
    """Whether a path is what a machine keeps for itself beside the records of workflow runs.

    >>> stays_beside_runs("workflow-runs/w-1/workflow-run-r-1.log")
    True
    """
    top, _, rest = rel.partition("/")
    name = rest.partition("/")[2]
    is_log = name.startswith(_RUN) and name.endswith(_LOG)
    return top == WORKFLOW_RUNS and (is_log or name == RUNS_INDEX)


def output_of(rel: str) -> tuple[str, str] | None:
    """Return the model type and the method whose output record a path is, None if it is none.

    >>> output_of("outputs/aws/ec2/start/i-1-2026-01-01T00-00-00-000Z.yaml")
    ('aws/ec2', 'start')
    """
    top, _, rest = rel.partition("/")
    parts = rest.rsplit("/", 2)
    if top != OUTPUTS or len(parts) < 3 or not parts[2].endswith(_YAML) or is_temp(parts[2]):
        return None
    return parts[0], parts[1]
