"""An imaginary store: it answers from a formula, so that ten million objects cost nothing to make.

`imaginary://20000x24x10` has 20,000 models of 24 data names with 10 versions each, and a sharded
index that tells of them. What is written to it (locks, snapshots, marks, shards) is kept in the
directory `?dir=`, so that all processes of a job see it; of data nothing can be written. The rest
of the query is in `Shape`. It is found through an entry point, see `register`.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

from swampstore import Metadata, Owner
from swampstore.artifacts.metadata import encode
from swampstore.errors import ValidationError
from swampstore.index.meta import Meta, encode_meta
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, partition_in, shard_key
from swampstore.layout import METADATA, RAW
from swampstore.stores.config import GROUP, Limits
from swampstore.stores.directory import DirectoryConfig
from swampstore.stores.errors import ObjectNotFoundError, not_found
from swampstore.stores.protocol import (
    Fetched,
    Handed,
    Level,
    ObjectInfo,
    Store,
    Wanted,
    receive,
)
from swampstore.stores.wrapper import StoreWrapper

ROOT = Path(__file__).parents[2]
_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
_TIME = "2026-01-01T00:00:00.000Z"
_KEY = re.compile(
    r"data/imaginary/t(\d{4})/m(\d{6})/n(\d{6})/(?:([1-9]\d*)/(raw|metadata\.yaml)|latest)"
)
_RAW = '{"model": "%06d", "name": "%06d", "version": "%08d", "status": "running"}\n'
_RAW_SIZE = len(_RAW % (0, 0, 0))
_ENTRY_BYTES = 300
_OLD_VERSIONS = 3
# Of every so many names the old versions are garbage.
_COLLECTED = 4


class Shape(NamedTuple):
    """How many there are of what.

    The first model has `heavy` names more, and its first name `long` versions more. `format` is the
    version, 0 if there is none. `wrong`: of every so many versions the content is longer than the
    index says, 0 for none.
    """

    models: int
    names: int
    versions: int
    heavy: int = 0
    long: int = 0
    format: int = 2
    wrong: int = 0
    types: int = 100

    def names_of(self, model: int) -> int:
        """Return how many data names a model has."""
        return self.names + (0 if model else self.heavy)

    def versions_of(self, model: int, name: int) -> int:
        """Return how many versions a data name has."""
        return self.versions + (0 if model or name else self.long)

    def objects_of(self, model: int) -> int:
        """Return how many objects of data a model has."""
        names = self.names_of(model)
        return names * (2 * self.versions + 1) + (0 if model else 2 * self.long)

    @property
    def objects(self) -> int:
        """How many objects of data there are."""
        return self.objects_of(0) + (self.models - 1) * self.objects_of(1)

    def models_of(self, kind: int) -> range:
        """Return the models of a type: there are `types` in each."""
        return range(kind * self.types, min(self.models, (kind + 1) * self.types))

    @property
    def kinds(self) -> range:
        """The types of models."""
        return range(-(-self.models // self.types))


@lru_cache
def _template(is_collected: bool) -> str:
    policy: int | str = _OLD_VERSIONS if is_collected else 1_000_000
    metadata = Metadata(
        id="00000000-0000-4000-8000-NNNNNNVVVVVV",
        name="nNNNNNN",
        version=77777,
        content_type="application/json",
        lifetime="infinite",
        garbage_collection=policy,
        streaming=False,
        tags={"type": "resource"},
        owner=Owner("model-method", "m"),
        created_at=_TIME,
        size=_RAW_SIZE,
        checksum="SHA256",
    )
    return encode(metadata).decode()


def _raw(model: int, name: int, version: int) -> bytes:
    return (_RAW % (model, name, version)).encode()


def _described(model: int, name: int, version: int) -> bytes:
    checksum = hashlib.sha256(_raw(model, name, version)).hexdigest()
    text = _template(name % _COLLECTED == 0).replace("SHA256", checksum)
    text = text.replace("NNNNNN", f"{name:06}").replace("VVVVVV", f"{version % 1_000_000:06}")
    return text.replace("version: 77777", f"version: {version}").encode()


def _etag(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


class ImaginaryStore(StoreWrapper):
    """Data and index by formula; everything else is in the directory behind it."""

    def __init__(self, shape: Shape, identity: str, inner: Store) -> None:
        super().__init__(inner)
        self._shape = shape
        self._identity = identity

    @property
    def identity(self) -> str:
        """See Store.identity."""
        return self._identity

    # Single objects ----------------------------------------------------------------------------

    def get(self, key: str) -> Fetched:
        """See Store.get."""
        if not key.startswith("data/"):
            try:
                return self.inner.get(key)
            except ObjectNotFoundError:
                pass
        data = self._content(key)
        if data is None:
            raise not_found(key, self._identity)
        return Fetched(_info(key, len(data)), data)

    def get_if_changed(self, key: str, etag: str) -> Fetched | None:
        """See Store.get_if_changed."""
        found = self.get(key)
        return None if found.info.etag == etag else found

    def download(
        self, key: str, fd: int, *, size: int | None = None, sha256: str | None = None
    ) -> ObjectInfo:
        """See Store.download."""
        info, data = self.get(key)
        receive([data], fd, what=key, size=size, sha256=sha256)
        return info

    def head(self, key: str) -> ObjectInfo:
        """See Store.head."""
        if key == MONOLITH_KEY and self._shape.format == 1:
            return _info(key, self._size_of(key))
        return self.get(key).info

    def around(self, request: Any, send: Any) -> Any:
        """Let nobody write what the formula says."""
        if request.writes and request.key.startswith("data/"):
            raise ValidationError(f"{request.key} is imaginary", hint="Nothing can be written.")
        return send()

    def _content(self, key: str) -> bytes | None:
        found = _KEY.fullmatch(key)
        if found is not None:
            return self._data(found)
        if not self._shape.format:
            return None
        if key == META_KEY:
            return self._meta()
        if key == MONOLITH_KEY and self._shape.format == 1:
            return b'{"version":1,"lastPulled":"%b","entries":{%b}}' % (
                _TIME.encode(),
                b",".join(filter(None, map(self._entries, self._partitions()))),
            )
        partition = partition_in(key)
        entries = self._entries(partition) if partition else b""
        return b'{"version":1,"entries":{%b}}' % entries if entries else None

    def _data(self, found: re.Match[str]) -> bytes | None:
        kind, model, name = int(found[1]), int(found[2]), int(found[3])
        shape = self._shape
        if model >= shape.models or model // shape.types != kind or name >= shape.names_of(model):
            return None
        newest = shape.versions_of(model, name)
        if found[4] is None:
            return b"%d" % newest
        version = int(found[4])
        if version > newest:
            return None
        if found[5] == METADATA:
            return _described(model, name, version)
        return _raw(model, name, version) + (b" " if self._is_wrong(name, version) else b"")

    def _is_wrong(self, name: int, version: int) -> bool:
        return bool(self._shape.wrong) and (name * 31 + version) % self._shape.wrong == 0

    # The index ---------------------------------------------------------------------------------

    def _partitions(self) -> Iterator[str]:
        for kind in self._shape.kinds:
            yield f"data--imaginary--t{kind:04}"
            for model in self._shape.models_of(kind):
                yield f"data--imaginary--t{kind:04}--m{model:06}"

    def _size_of(self, document: str) -> int:
        """Return about how long a document is."""
        parts = (partition_in(document) or "").split("--")
        shape = self._shape
        if len(parts) < 3:
            return _ENTRY_BYTES * shape.objects
        if len(parts) == 3:
            return _ENTRY_BYTES * sum(map(shape.names_of, shape.models_of(int(parts[2][1:]))))
        model = int(parts[3][1:])
        return _ENTRY_BYTES * (shape.objects_of(model) - shape.names_of(model))

    def _meta(self) -> bytes:
        partitions = tuple(self._partitions())
        etags = {one: _etag(shard_key(one)) for one in partitions}
        version = self._shape.format
        if version == 1:
            meta = Meta(1, partitions, None, etags, _etag(MONOLITH_KEY), {}, "imaginary")
        else:
            meta = Meta(2, partitions, 1, etags, None, {}, "imaginary")
        return encode_meta(meta, "imaginary")

    def _entries(self, partition: str) -> bytes:
        """Return the members of a shard."""
        parts = partition.split("--")
        kind = int(parts[2][1:])
        lines: list[str] = []
        if len(parts) == 3:
            for model in self._shape.models_of(kind):
                for name in range(self._shape.names_of(model)):
                    data = b"%d" % self._shape.versions_of(model, name)
                    lines.append(_entry(f"{_name_rel(model, name, self._shape)}/latest", data))
            return ",".join(lines).encode()
        model = int(parts[3][1:])
        for name in range(self._shape.names_of(model)):
            rel = _name_rel(model, name, self._shape)
            for version in range(1, self._shape.versions_of(model, name) + 1):
                lines.append(
                    _entry(f"{rel}/{version}/{METADATA}", _described(model, name, version))
                )
                lines.append(_entry(f"{rel}/{version}/{RAW}", _raw(model, name, version)))
        return ",".join(lines).encode()

    # Listings ----------------------------------------------------------------------------------

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See Store.list."""
        if not prefix.startswith("data/"):
            written = list(self.inner.list(prefix))
            known = {info.key for info in written}
            yield from written
            for key in self._documents():
                if key.startswith(prefix) and key not in known:
                    yield _info(key, self._size_of(key))
            if not "data/".startswith(prefix):
                return
        below, _, rest = prefix.rpartition("/")
        for one in self._models_below(below):
            for info in self._of_model(one, below):
                if not rest or info.key.startswith(prefix):
                    yield info

    def contents(self, prefix: str, wanted: Wanted, limit: int) -> Iterator[Handed]:
        """See swampstore.stores.protocol."""
        del limit  # everything here is small
        for info in self.list(prefix):
            is_wanted = wanted(info)
            yield Handed(info, is_wanted, self.get(info.key).data if is_wanted else None)

    def level(self, prefix: str = "") -> Level:
        """See swampstore.stores.protocol."""
        parts = prefix.split("/")[:-1]
        if not parts or parts[0] != "data":
            found = self.inner.level(prefix)  # type: ignore[attr-defined]  # a directory has it
            folders = {*found.folders} | ({"data", "_index"} if not prefix else set())
            objects = {info.key: info for info in found.objects}
            for key in self._documents():
                if key.startswith(prefix) and "/" not in key.removeprefix(prefix):
                    objects.setdefault(key, _info(key, self._size_of(key)))
            return Level(
                sorted(folders - ({"_index"} if not self._shape.format else set())),
                sorted(objects.values()),
            )
        shape = self._shape
        match len(parts):
            case 1:
                return Level(["imaginary"], [])
            case 2:
                return Level([f"t{kind:04}" for kind in shape.kinds], [])
            case 3:
                return Level([f"m{model:06}" for model in shape.models_of(int(parts[2][1:]))], [])
            case 4:
                names = range(shape.names_of(int(parts[3][1:])))
                return Level([f"n{name:06}" for name in names], [])
        infos = list(self.list(prefix))
        inner = {info.key.removeprefix(prefix) for info in infos}
        folders = {one.partition("/")[0] for one in inner if "/" in one}
        return Level(
            sorted(folders), sorted(one for one in infos if "/" not in one.key.removeprefix(prefix))
        )

    def _documents(self) -> Iterator[str]:
        if not self._shape.format:
            return
        if self._shape.format == 1:
            yield MONOLITH_KEY
        yield META_KEY
        yield from map(shard_key, self._partitions())

    def _models_below(self, below: str) -> Iterator[int]:
        parts = below.split("/")
        kinds = self._shape.kinds if len(parts) < 3 else [int(parts[2][1:])]
        if len(parts) >= 4:
            yield int(parts[3][1:])
            return
        for kind in kinds:
            yield from self._shape.models_of(kind)

    def _of_model(self, model: int, below: str) -> Iterator[ObjectInfo]:
        parts = below.split("/")
        every = range(self._shape.names_of(model))
        for name in every if len(parts) < 5 else [int(parts[4][1:])]:
            yield from self._of_name(model, name, parts[5] if len(parts) > 5 else None)

    def _of_name(self, model: int, name: int, only: str | None) -> Iterator[ObjectInfo]:
        rel = _name_rel(model, name, self._shape)
        extra = len(_described(model, name, 1)) - 1
        for version in _in_order(self._shape.versions_of(model, name)):
            if only is not None and version != only:
                continue
            size = _RAW_SIZE + self._is_wrong(name, int(version))
            for key, length in (
                (f"{rel}/{version}/{METADATA}", extra + len(version)),
                (f"{rel}/{version}/{RAW}", size),
            ):
                yield ObjectInfo(key, length, _fast_etag(key), None, _BEGINNING)
        if only is None:
            newest = str(self._shape.versions_of(model, name))
            key = f"{rel}/latest"
            yield ObjectInfo(key, len(newest), _fast_etag(key), None, _BEGINNING)


def _fast_etag(key: str) -> str:
    return key[-40:]


def _info(key: str, size: int) -> ObjectInfo:
    etag = _fast_etag(key) if key.startswith("data/") else _etag(key)
    return ObjectInfo(key, size, etag, etag, _BEGINNING)


@lru_cache(maxsize=8)
def _in_order(versions: int) -> tuple[str, ...]:
    return tuple(sorted(map(str, range(1, versions + 1))))


def _name_rel(model: int, name: int, shape: Shape) -> str:
    return f"data/imaginary/t{model // shape.types:04}/m{model:06}/n{name:06}"


def _entry(rel: str, data: bytes) -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    return (
        f'"{rel}":{{"key":"{rel}","size":{len(data)},"lastModified":"{_TIME}",'
        f'"sha256":"{sha256}","commitSeq":1}}'
    )


# How it is found ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ImaginaryConfig:
    """`imaginary://MODELSxNAMESxVERSIONS?dir=PATH&format=2`."""

    shape: Shape
    directory: str
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def from_url(cls, url: str, environ: Mapping[str, str]) -> Self:
        """Read a URL."""
        del environ
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        directory = query.pop("dir", os.path.join(tempfile.gettempdir(), "imaginary"))
        models, names, versions = map(int, parts.netloc.split("x"))
        members = {name: int(value) for name, value in query.items()}
        return cls(Shape(models, names, versions, **members), directory)

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any], environ: Mapping[str, str]) -> Self:
        """Read `{url: ...}`."""
        return cls.from_url(config["url"], environ)

    def open(self) -> Store:
        """Return the store."""
        os.makedirs(self.directory, exist_ok=True)
        identity = "imaginary://" + "x".join(map(str, self.shape))
        return ImaginaryStore(self.shape, identity, DirectoryConfig(self.directory).open())


def register(directory: str | os.PathLike[str]) -> None:
    """Make `imaginary:` known here, and to all processes that are started from now on."""
    info = Path(directory) / "imaginary_store-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: imaginary-store\nVersion: 1\n")
    where = f"{__name__}:{ImaginaryConfig.__name__}"
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nimaginary = {where}\n")
    paths = [str(ROOT), str(directory)]
    sys.path += [one for one in paths if one not in sys.path]
    before = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*paths, *before]))
