"""What the commands below `swampstore pipeline` have in common: the target, and a Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.options import Whole, dry_run_option
from swampstore.cli.progress import saying
from swampstore.cli.session import Session
from swampstore.errors import RepoNotFoundError
from swampstore.pipeline.places import places_of
from swampstore.pipeline.schemas import Kept
from swampstore.pipeline.settings import settings_of
from swampstore.pipeline.spark.session import session_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from swampstore.config import Config
    from swampstore.pipeline.places import Place
    from swampstore.pipeline.settings import Engine, SparkSettings


@dataclass(frozen=True, slots=True)
class Bulk:
    """What a bulk command was told: which places, where Spark is, what becomes of the findings."""

    target: str | None
    namespaces: tuple[str, ...]
    dry_run: bool
    findings: Kept | None
    master: str | None

    def places(self, session: Session) -> list[Place]:
        """Return the places that are meant: those of the target, else of the repository."""
        if self.target is not None:
            return places_of(self.target, self.namespaces or None)
        with session.open_repo() as repo:
            own = [repo.config.namespace]
            if session.datastore is not None:
                return places_of(session.datastore, self.namespaces or own)
            return places_of(repo, self.namespaces or own)

    def settings(self, session: Session) -> SparkSettings:
        """Return how Spark is to be run, by the command line, the environment and the marker."""
        try:
            with session.open_repo() as repo:
                return settings_at(repo.config, self.master)
        except RepoNotFoundError:
            return settings_at(None, self.master)  # a bucket can be looked after from anywhere

    def engine_of(self, engine: Engine | None, settings: SparkSettings) -> Engine:
        """Return who does the work; whoever names a master wants Spark, in one's own words."""
        return engine or ("spark" if self.master else settings.engine)

    @contextmanager
    def spark(self, session: Session) -> Iterator[SparkSession]:
        """Yield a Spark session, which ends with the block if it began with it."""
        with ExitStack() as stack:
            with saying("Starting Spark"):
                spark = stack.enter_context(session_for(self.settings(session)))
            yield spark


def settings_at(config: Config | None, master: str | None) -> SparkSettings:
    """Return what environment and marker say of Spark, at the master of the command line if any."""
    settings = settings_of(config)
    return settings.at(master) if master else settings


_target = click.argument(
    "target",
    required=False,
    help="A URL such as s3://bucket/prefix, or a directory in a repository."
    "  [default: the repository here]",
)
_namespace = click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAMESPACE",
    help="Only this namespace, * for all; may be given several times."
    "  [default: the repository's own, of a URL all]",
)
_findings = click.option(
    "--findings",
    metavar="PATH",
    help="Keep what is found: JSON lines if the path ends with .json, else a Parquet directory.",
)
_append = click.option(
    "--append", is_flag=True, help="Keep what earlier runs found at that path, too."
)


def findings_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add `--findings` and `--append`; they reach the function as `findings`."""

    @wraps(function)
    def collected(*args: Any, findings: str | None, append: bool, **rest: Any) -> None:
        if append and findings is None:
            raise click.UsageError("--append is about findings: say where, --findings PATH")
        kept = None if findings is None else Kept(findings, append)
        function(*args, findings=kept, **rest)

    return _findings(_append(collected))


master_option = click.option(
    "--master",
    metavar="URL",
    help="Where Spark is, such as local[4], spark://host:7077 or sc://host."
    "  [default: as configured, else local[*]]",
)


def grace_option(meaning: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option for the age, in minutes, up to which a push may still be going on."""
    return click.option(
        "--grace",
        type=Whole(0, 52_560_000),  # a hundred years
        default=60,
        show_default=True,
        metavar="MINUTES",
        help=meaning,
    )


def spark_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the target, `--namespace` and `--master`; they reach the function as `bulk`."""

    @wraps(function)
    def collected(
        *args: Any,
        target: str | None,
        namespaces: tuple[str, ...],
        master: str | None,
        dry_run: bool = False,
        findings: Kept | None = None,
        **rest: Any,
    ) -> None:
        bulk = Bulk(target, namespaces, dry_run, findings, master)
        function(*args, bulk=bulk, **rest)

    return _target(_namespace(master_option(collected)))


def pipeline_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add `--dry-run` and `--findings` to what `spark_options` adds."""
    return dry_run_option(findings_option(spark_options(function)))
