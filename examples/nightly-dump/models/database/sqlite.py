"""The code of the type `database/sqlite`: dump a database, and prove that the dump is one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import swampstore


@swampstore.model(
    "database/sqlite",
    version="2026.05.14.1",
    arguments={
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
    },
)
class Sqlite:
    """A database in a file. Where it is says the global argument `path`."""

    dump = swampstore.File("application/sql", name="dump")
    check = swampstore.Resource(name="check", lifetime="90d")

    @swampstore.check
    def is_there(self, context: swampstore.MethodContext) -> str | None:
        """Look before anything runs: sqlite would make an empty database of a wrong path."""
        path = context.global_args["path"]
        return None if Path(path).is_file() else f"there is no database {path}"

    @swampstore.method(name="dump", rollback_on_failure=True)
    def make_dump(self, context: swampstore.MethodContext) -> None:
        """Save the whole database as SQL, in one state of it, whatever is written meanwhile."""
        source = f"file:{context.global_args['path']}?mode=ro"
        with (
            closing(sqlite3.connect(source, uri=True)) as database,
            context.file_writer("dump", "dump") as writer,
        ):
            for statement in database.iterdump():
                context.check_cancelled()
                writer.write_line(statement)
        context.logger.info("dumped %s", context.global_args["path"])

    @swampstore.method(kind="read")
    def verify(self, context: swampstore.MethodContext) -> None:
        """Restore the latest dump into memory, and count what is in it."""
        own = f'name == "dump" && modelId == "{context.model.id}"'
        *_, latest = context.query(own, order="version")
        with closing(sqlite3.connect(":memory:")) as database:
            database.executescript(latest.text())
            tables = [
                name
                for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")
            ]
            rows = {
                name: database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
                for name in sorted(tables)
            }
        context.write_resource("check", "check", {"dump": latest.version, "rows": rows})
