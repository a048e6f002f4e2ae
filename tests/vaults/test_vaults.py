"""Vaults keep secrets: their format, their key, their files, and what they refuse."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from swampstore import Repo, open_repo
from swampstore.errors import (
    AlreadyExistsError,
    ConfigError,
    LockTimeoutError,
    MissingExtraError,
    NewerFormatError,
    SwampstoreError,
    ValidationError,
)
from swampstore.marker import update_marker
from swampstore.vaults import Provider, Vault, Vaults, local_encryption
from swampstore.vaults.errors import (
    SecretDamagedError,
    SecretNotFoundError,
    VaultError,
    VaultKeyError,
    VaultNotFoundError,
    VaultProviderError,
    VaultUnsupportedError,
)
from swampstore.vaults.events import events
from swampstore.vaults.keys import create_key, read_key, ssh_key
from swampstore.vaults.local_encryption import LocalEncryption, decrypt, encrypt
from swampstore.vaults.migration import migrate
from tests.conftest import FakeClock
from tests.support.vault_testing import keeping_program

pytest.importorskip("cryptography", reason="the extra `vaults` is not installed")

KEY = b"00000000-0000-4000-8000-00000000000000000000-0000-4000-8000-000000000001"
FILE = (
    b'{"iv":"ZGVmZ2hpamtsbW5v","data":"JjEM3vhRboV7/DGrE8FJ3icKwKuyDcirkw==",'
    b'"salt":"AAECAwQFBgcICQoLDA0ODw==","version":2}'
)


@pytest.fixture
def vaults(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> Vaults:
    # How long it takes to guess a key is no matter of these tests.
    monkeypatch.setattr(local_encryption, "_ITERATIONS", 10)
    return Vaults(repo, environ={"HOME": "/nowhere", "PATH": os.environ["PATH"]})


@pytest.fixture
def vault(vaults: Vaults) -> Vault:
    vaults.create("local_encryption", "ops")
    return vaults.open("ops")


@pytest.fixture
def secrets(repo_dir: Path) -> Path:
    """The directory of the vault `ops`."""
    return repo_dir / ".swamp/secrets/local_encryption/ops"


# The format ------------------------------------------------------------------------------------


def test_what_another_client_encrypted_can_be_read() -> None:
    assert decrypt(KEY, FILE, "it") == "s3cr3t-é"


def test_what_is_encrypted_has_the_same_form_and_no_two_files_are_equal() -> None:
    file = encrypt(KEY, "s3cr3t-é")
    document = json.loads(file)
    sizes = {name: len(base64.b64decode(document[name])) for name in ("iv", "data", "salt")}
    assert sizes == {"iv": 12, "data": len("s3cr3t-é".encode()) + 16, "salt": 16}
    assert list(document) == ["iv", "data", "salt", "version"]
    assert document["version"] == 2
    assert decrypt(KEY, file, "it") == "s3cr3t-é"
    assert encrypt(KEY, "s3cr3t-é") != file


def test_another_key_opens_nothing() -> None:
    assert decrypt(b"another", FILE, "it") is None


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"[]",
        b"{",
        b'{"version":2}',
        FILE.replace(b"ZGVmZ2hpamtsbW5v", b"ZGVm"),
        FILE.replace(b":2}", b":1}"),
        FILE.replace(b"AAEC", b"!!!!"),
    ],
)
def test_a_file_that_is_no_encrypted_secret_is_named(file: bytes) -> None:
    with pytest.raises(SecretDamagedError, match="the/file"):
        decrypt(KEY, file, "the/file")


def test_a_secret_of_a_newer_release_is_left_alone() -> None:
    with pytest.raises(NewerFormatError):
        decrypt(KEY, FILE.replace(b":2}", b":3}"), "it")


def test_a_vault_of_another_client_can_be_used_as_it_is(
    repo: Repo, repo_dir: Path, secrets: Path
) -> None:
    (repo_dir / "vaults/local_encryption").mkdir(parents=True)
    (repo_dir / "vaults/local_encryption/1.yaml").write_text(
        "id: '1'\nname: ops\ntype: local_encryption\ncreatedAt: '2026-05-01T09:00:00.000Z'\n"
        "config:\n  auto_generate: true\n  base_dir: /somewhere/else\n"
    )
    secrets.mkdir(parents=True)
    (secrets / ".key").write_bytes(KEY)
    (secrets / ".key").chmod(0o600)
    (secrets / "db.enc").write_bytes(FILE)
    assert Vaults(repo).open("ops").get("db") == "s3cr3t-é"


def test_without_the_library_it_is_said_what_to_install(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(MissingExtraError) as missing:
        vault.put("db", "one")
    assert "swampstore[vaults]" in str(missing.value.hint)


# Secrets ---------------------------------------------------------------------------------------


def test_a_secret_is_kept_replaced_listed_and_deleted(vault: Vault) -> None:
    vault.put("db", "one")
    vault.put("db", "two\n")
    vault.put("api", "é" * 100)
    assert vault.get("db") == "two\n"
    assert vault.keys() == ["api", "db"]
    assert vault.details("api").size == 200
    vault.delete("db")
    assert vault.keys() == ["api"]
    with pytest.raises(SecretNotFoundError, match="db"):
        vault.get("db")
    with pytest.raises(SecretNotFoundError, match="db"):
        vault.delete("db")


def test_nobody_else_can_read_the_files_of_a_vault(vault: Vault, secrets: Path) -> None:
    old = os.umask(0)
    try:
        vault.put("db", "one")
        vault.annotate("db", notes="x")
    finally:
        os.umask(old)
    files = [path for path in secrets.rglob("*") if path.is_file()]
    assert len(files) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    directories = [secrets, secrets.parent, secrets.parent.parent, secrets / ".annotations"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in directories} == {0o700}
    assert b"one" not in b"".join(path.read_bytes() for path in files)


@pytest.mark.parametrize("key", ["", "..", "a/b", "a\\b", "a\0b", "x" * 252])
def test_a_key_that_is_no_file_name_is_refused(vault: Vault, key: str) -> None:
    for use in (lambda: vault.put(key, "one"), lambda: vault.get(key)):
        with pytest.raises(ValidationError):
            use()


@pytest.mark.parametrize("value", ["", "a\0b", "caf\udce9"])
def test_a_value_that_no_program_could_use_is_refused(vault: Vault, value: str) -> None:
    with pytest.raises(ValidationError):
        vault.put("db", value)
    assert vault.keys() == []


def test_annotations_are_merged_and_taken_away(vault: Vault, clock: FakeClock) -> None:
    vault.put("db", "one")
    vault.annotate("db", url="https://db", labels={"team": "data", "env": "prod"})
    clock.advance(hours=1)
    vault.annotate("db", notes="by hand", url="", labels={"env": ""})
    annotation = vault.details("db").annotation
    assert annotation == {
        "notes": "by hand",
        "labels": {"team": "data"},
        "updatedAt": "2026-05-14T21:19:51.042Z",
    }
    assert vault.get("db") == "one"
    vault.delete("db")
    vault.put("db", "two")
    assert vault.details("db").annotation is None


def test_a_secret_that_is_too_old_is_made_anew_by_its_hook(
    vault: Vault, clock: FakeClock, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_text("new value\n\n")
    vault.put("token", "first")
    vault.refresh_by("token", f"cat {source}", "1h")
    assert vault.get("token") == "first"
    clock.advance(hours=1)
    assert vault.get("token") == "new value"
    source.write_text("newer")
    assert vault.get("token") == "new value"
    clock.advance(hours=1)
    source.unlink()
    assert vault.get("token") == "new value", "a hook that fails leaves what there is"
    vault.put("token", "by hand")
    source.write_text("newest")
    assert vault.get("token") == "by hand"


def test_a_secret_that_is_due_can_be_read_where_nothing_can_be_written(
    vault: Vault, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault.put("token", "old")
    vault.refresh_by("token", "echo new", "1h")
    clock.advance(hours=2)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(local_encryption, "replace_file", full)
        assert vault.get("token") == "new"
        patched.setattr(local_encryption, "make_private_dir", full)
        assert vault.get("token") == "old"
    assert vault.get("token") == "new"


# The key ---------------------------------------------------------------------------------------


def test_a_key_is_two_uuids_and_made_once(tmp_path: Path) -> None:
    path = str(tmp_path / ".key")
    key = create_key(path, durable=False)
    assert len(key) == 72
    assert create_key(path, durable=False) == key
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path) == [".key"]


def test_of_many_who_make_a_key_all_get_the_same(tmp_path: Path) -> None:
    path, keys = str(tmp_path / ".key"), set[bytes]()
    start = threading.Barrier(8)

    def make() -> None:
        start.wait()
        keys.add(create_key(path, durable=False))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert keys == {read_key(path)}


def test_an_empty_key_of_somebody_who_died_counts_as_none(vault: Vault, secrets: Path) -> None:
    secrets.mkdir(parents=True)
    (secrets / ".key").touch(0o600)
    vault.put("db", "one")
    assert vault.get("db") == "one"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_key_that_others_can_read_is_refused(vault: Vault, secrets: Path, mode: int) -> None:
    vault.put("db", "one")
    (secrets / ".key").chmod(mode)
    for use in (lambda: vault.get("db"), lambda: vault.put("db", "two")):
        with pytest.raises(VaultKeyError, match=f"{mode:04o}"):
            use()
    (secrets / ".key").chmod(0o600)
    assert vault.get("db") == "one"


def test_a_lost_key_is_not_replaced_by_a_new_one(vault: Vault, secrets: Path) -> None:
    vault.put("db", "one")
    key = (secrets / ".key").read_bytes()
    (secrets / ".key").unlink()
    for use in (lambda: vault.get("db"), lambda: vault.put("new", "x"), vault.rotate):
        with pytest.raises(VaultKeyError, match="is not there"):
            use()
    assert not (secrets / ".key").exists()
    (secrets / ".key").write_bytes(key)
    (secrets / ".key").chmod(0o600)
    assert vault.get("db") == "one"


def test_a_damaged_secret_is_told_and_takes_no_other_with_it(vault: Vault, secrets: Path) -> None:
    vault.put("db", "one")
    vault.put("api", "two")
    data = json.loads((secrets / "db.enc").read_bytes())
    data["data"] = base64.b64encode(b"x" * 30).decode()
    (secrets / "db.enc").write_text(json.dumps(data))
    with pytest.raises(SecretDamagedError, match=r"db\.enc"):
        vault.get("db")
    assert vault.get("api") == "two"
    with pytest.raises(SecretDamagedError, match=r"db\.enc"):
        vault.rotate()
    assert vault.get("api") == "two"


def test_a_new_key_encrypts_everything_and_the_old_one_is_gone(vault: Vault, secrets: Path) -> None:
    vault.put("db", "one")
    vault.put("api", "two")
    vault.annotate("db", notes="x")
    vault.refresh_by("api", "true", "1h")
    old = read_key(str(secrets / ".key"))
    assert old is not None
    assert vault.rotate() == 2
    new = read_key(str(secrets / ".key"))
    assert new != old
    assert (vault.get("db"), vault.get("api")) == ("one", "two")
    assert vault.details("db").annotation is not None
    assert vault.details("api").refresh is not None
    files = [*secrets.rglob("*.enc")]
    assert len(files) == 4
    assert all(decrypt(old, path.read_bytes(), "it") is None for path in files)
    assert {path.name for path in secrets.iterdir()} == {
        *(".key", ".annotations", ".refresh", "db.enc", "api.enc")
    }


def test_secrets_can_be_read_while_the_key_changes(vault: Vault) -> None:
    vault.put("db", "one")
    over = threading.Event()
    failures: list[SwampstoreError] = []

    def read() -> None:
        while not over.is_set():
            try:
                assert vault.get("db") == "one"
            except SwampstoreError as error:
                failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(3):
        vault.rotate()
    over.set()
    reader.join()
    assert failures == []


_PEM = "-----BEGIN RSA PRIVATE KEY-----\n{}-----END RSA PRIVATE KEY-----\n"


def test_an_ssh_key_can_be_what_encrypts(vaults: Vaults, tmp_path: Path) -> None:
    path = tmp_path / "id_rsa"
    path.write_text(_PEM.format("aGVs\nbG8=\n"))
    path.chmod(0o600)
    assert ssh_key(str(path)) == b"hello"
    vaults.create("local_encryption", "ops", {"ssh_key_path": str(path)})
    vault = vaults.open("ops")
    vault.put("db", "one")
    assert vault.get("db") == "one"
    with pytest.raises(VaultUnsupportedError, match="SSH key"):
        vault.rotate()
    path.chmod(0o644)
    with pytest.raises(VaultKeyError, match="others may read"):
        vault.get("db")


def test_the_default_key_is_that_of_ssh_only_if_nothing_else_was_said(
    repo: Repo, tmp_path: Path
) -> None:
    (tmp_path / ".ssh").mkdir()
    path = tmp_path / ".ssh/id_rsa"
    path.write_text(_PEM.format("aGVs\nbG8=\n"))
    path.chmod(0o600)
    vaults = Vaults(repo, environ={"HOME": str(tmp_path)})
    vaults.create("local_encryption", "ops", {"auto_generate": False})
    vaults.open("ops").put("db", "one")
    file = Path(repo.config.local_dir, "secrets/local_encryption/ops/db.enc")
    assert decrypt(b"hello", file.read_bytes(), "it") == "one"


_OPENSSH = b"openssh-key-v1\0\0\0\0\x0aaes256-ctr\0\0\0\x06bcrypt"


@pytest.mark.parametrize(
    "text",
    [
        _PEM.format("Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\naGVsbG8=\n"),
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\naGVsbG8=\n-----END ENCRYPTED PRIVATE KEY-----\n",
        "-----BEGIN OPENSSH PRIVATE KEY-----\n"
        + base64.b64encode(_OPENSSH).decode()
        + "\n-----END OPENSSH PRIVATE KEY-----\n",
    ],
)
def test_an_ssh_key_with_a_passphrase_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "id_rsa"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(VaultKeyError, match="passphrase"):
        ssh_key(str(path))


@pytest.mark.parametrize("text", ["", "ssh-rsa AAAA me@here", "-----BEGIN CERTIFICATE-----\naGVs"])
def test_what_is_no_private_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "id_rsa"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(VaultKeyError, match="not a private SSH key"):
        ssh_key(str(path))
    with pytest.raises(VaultKeyError, match="no SSH key"):
        ssh_key(str(tmp_path / "other"))


# Which vaults there are ------------------------------------------------------------------------


def test_the_file_of_a_vault_goes_to_git_and_says_nothing_of_this_machine(
    vaults: Vaults, repo_dir: Path
) -> None:
    made = vaults.create("local_encryption", "ops", audit_reads=True)
    path = repo_dir / f"vaults/local_encryption/{made.id}.yaml"
    assert path.read_text() == (
        f"id: {made.id}\nname: ops\ntype: local_encryption\nconfig:\n  auto_generate: true\n"
        "createdAt: '2026-05-14T20:19:51.042Z'\nauditReads: true\n"
    )
    assert vaults.open("ops").config == made


def test_a_name_is_taken_once(vaults: Vaults) -> None:
    vaults.create("local_encryption", "ops")
    with pytest.raises(AlreadyExistsError, match="ops"):
        vaults.create("environment", "ops")


def test_a_key_is_not_kept_where_everything_is_shared_from(
    vaults: Vaults, repo_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(repo_dir / ".swamp/files")
    for path in (".swamp/files/key", "./.swamp/key", str(tmp_path / "link/key")):
        with pytest.raises(ConfigError, match="in the datastore"):
            vaults.create("local_encryption", "ops", {"key_file": path})
    vaults.create("local_encryption", "ops", {"key_file": str(tmp_path / "keys/ops")})
    vault = vaults.open("ops")
    vault.put("db", "one")
    vault.rotate()
    assert vault.get("db") == "one"


def test_a_new_key_in_a_file_loses_no_secret_of_other_vaults_that_have_it(
    vaults: Vaults, tmp_path: Path
) -> None:
    for name in ("ops", "dev", "web"):
        vaults.create("local_encryption", name, {"key_file": str(tmp_path / "keys/team")})
        vaults.open(name).put("db", f"of {name}")
    for name in ("ops", "dev", "ops"):
        vaults.open(name).rotate()
        for other in ("ops", "dev", "web"):
            assert vaults.open(other).get("db") == f"of {other}"
    vaults.open("web").put("db", "new")
    assert vaults.open("web").get("db") == "new"
    assert not (tmp_path / "keys/team.next").exists()


def test_vaults_that_change_a_key_of_both_at_once_lose_no_secret(
    vaults: Vaults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ops", "dev"):
        vaults.create("local_encryption", name, {"key_file": str(tmp_path / "keys/team")})
        vaults.open(name).put("db", f"of {name}")
    monkeypatch.setattr(vaults, "_changing", lambda _: contextlib.nullcontext())
    before = LocalEncryption._seal_all_with
    others: list[threading.Thread] = []

    def sealed(provider: LocalEncryption, key: bytes) -> None:
        before(provider, key)
        if not others:  # another checkout does the same in that moment
            others.append(threading.Thread(target=vaults.open("dev").rotate))
            others[0].start()
            others[0].join(0.5)

    monkeypatch.setattr(LocalEncryption, "_seal_all_with", sealed)
    vaults.open("ops").rotate()
    others[0].join()
    for name in ("ops", "dev"):
        assert vaults.open(name).get("db") == f"of {name}"


@pytest.mark.parametrize("name", ["", "Ops", "_ops", "1ops", "o/ps", "o" * 65, "a b"])
def test_a_vault_has_a_plain_name(vaults: Vaults, name: str) -> None:
    with pytest.raises(ValidationError):
        vaults.create("local_encryption", name)


def test_settings_that_are_unknown_or_secret_are_refused(vaults: Vaults, repo_dir: Path) -> None:
    for settings in ({"colour": "red"}, {"password": "x"}, {"api_key": "x"}):
        with pytest.raises(ConfigError):
            vaults.create("local_encryption", "ops", settings)
    with pytest.raises(ConfigError, match="no type of vault"):
        vaults.create("cloud", "ops")
    assert not (repo_dir / "vaults").exists()


def test_a_broken_file_takes_no_other_vault_with_it(vaults: Vaults, repo_dir: Path) -> None:
    vaults.create("local_encryption", "ops")
    for number, text in enumerate(("{", "id: 1\n", "- x\n", "id: a\nname: ../x\ntype: t\n")):
        (repo_dir / f"vaults/local_encryption/{number}.yaml").write_text(text)
    (repo_dir / "vaults/local_encryption/z.yaml").write_text("id: z\nname: odd\ntype: cloud\n")
    known, broken = vaults.all()
    assert [vault.name for vault in known] == ["odd", "ops"]
    assert len(broken) == 4
    vaults.open("ops").put("db", "one")
    with pytest.raises(ConfigError, match="cloud"):
        vaults.open("odd")
    with pytest.raises(VaultNotFoundError, match="other") as refused:
        vaults.open("other")
    assert "4 could not be read" in str(refused.value.hint)


def test_two_vaults_of_one_name_are_both_left_out(vaults: Vaults, repo_dir: Path) -> None:
    made = vaults.create("local_encryption", "ops")
    text = Path(made.path).read_text()
    Path(made.path).with_name("other.yaml").write_text(text.replace(made.id, "other"))
    known, broken = vaults.all()
    assert known == []
    assert len(broken) == 2


def test_the_default_vault_is_the_configured_one_else_the_first(
    vaults: Vaults, repo: Repo, repo_dir: Path
) -> None:
    with pytest.raises(VaultNotFoundError, match="there is no vault"):
        vaults.default()
    vaults.create("local_encryption", "zoo")
    vaults.create("local_encryption", "app")
    path = Path(vaults.create("local_encryption", "hidden").path)
    path.write_text(path.read_text().replace("name: hidden", "name: _hidden"))
    assert vaults.default() == "app"
    update_marker(str(repo_dir), {"defaultVault": "zoo"})
    assert Vaults(repo).default() == "zoo"
    update_marker(str(repo_dir), {"defaultVault": "gone"})
    with pytest.raises(VaultNotFoundError, match="gone"):
        Vaults(repo).default()


def test_vaults_can_be_described_in_another_directory(repo: Repo, repo_dir: Path) -> None:
    update_marker(str(repo_dir), {"vaultsDir": "conf/vaults"})
    made = Vaults(repo).create("local_encryption", "ops")
    assert made.path == f"{repo_dir}/conf/vaults/local_encryption/{made.id}.yaml"
    update_marker(str(repo_dir), {"vaultsDir": 5})
    with pytest.raises(ConfigError, match="vaultsDir"):
        Vaults(repo)


def test_secrets_are_found_in_a_repository_that_was_moved(
    vault: Vault, repo_dir: Path, tmp_path: Path
) -> None:
    vault.put("db", "one")
    repo_dir.rename(tmp_path / "elsewhere")
    with open_repo(tmp_path / "elsewhere") as moved:
        assert Vaults(moved).open("ops").get("db") == "one"


def test_secrets_stay_in_the_local_tier_whatever_is_configured(
    repo_dir: Path, tmp_path: Path
) -> None:
    section = {"path": str(tmp_path / "share"), "namespace": "infra", "directories": ["secrets"]}
    update_marker(str(repo_dir), {"datastore": section})
    with open_repo(repo_dir) as repo:
        Vaults(repo).create("local_encryption", "ops")
        Vaults(repo).open("ops").put("db", "one")
    assert (repo_dir / ".swamp/secrets/local_encryption/ops/db.enc").exists()
    assert not [*tmp_path.glob("share/**/*.enc")]


def test_whoever_changes_a_vault_for_too_long_is_told_of(repo: Repo, repo_dir: Path) -> None:
    Vaults(repo).create("local_encryption", "ops")
    environ = {**os.environ, "SWAMP_LOCK_TIMEOUT_MS": "50"}
    with (
        open_repo(repo_dir, environ=environ) as other,
        Vaults(repo).changing(),
        pytest.raises(LockTimeoutError, match="the vaults"),
    ):
        Vaults(other).open("ops").put("db", "one")


# Audit -----------------------------------------------------------------------------------------


def test_every_change_is_written_down_and_reads_only_if_the_vault_says_so(
    vaults: Vaults, repo: Repo
) -> None:
    for name, reads in (("ops", True), ("dev", False)):
        vaults.create("local_encryption", name, audit_reads=reads)
        vault = vaults.open(name)
        vault.put("db", "hunter2")
        vault.get("db")
        vault.annotate("db", notes="about hunter2")
        vault.rotate()
        vault.delete("db")
    done = [(event.vault, event.action, event.key) for event in events(repo)]
    assert [one for one in done if one[0] == "ops"] == [
        ("ops", "create", ""),
        ("ops", "put", "db"),
        ("ops", "get", "db"),
        ("ops", "annotate", "db"),
        ("ops", "rotate", ""),
        ("ops", "delete", "db"),
    ]
    assert "get" not in [action for vault, action, _ in done if vault == "dev"]
    (file,) = Path(repo.tree.path("audit")).iterdir()
    assert file.name.startswith("vault-audit-2026-05-14-")
    assert b"hunter2" not in file.read_bytes()
    line = json.loads(file.read_bytes().splitlines()[1])
    assert line.keys() == {
        *("action", "timestamp", "vaultName", "vaultType", "secretKey", "callerContext", "actor")
    }


def test_a_line_that_was_torn_takes_no_other_with_it(vault: Vault, repo: Repo) -> None:
    (file,) = Path(repo.tree.path("audit")).iterdir()
    with file.open("ab") as end:
        end.write(b'{"action":"put","timest')
    vault.put("db", "one")
    assert [event.action for event in events(repo)] == ["create", "put"]


def test_old_files_of_reads_are_read_as_well(vault: Vault, repo: Repo) -> None:
    old = Path(repo.tree.path("audit"), "vault-reads-2026-01-01.jsonl")
    old.write_text(
        '{"timestamp":"2026-01-01T00:00:00.000Z","vaultName":"ops","secretKey":"db"}\n'
        '5\n{"timestamp":5}\nnull\n{"timestamp":"noon"}\n'
    )
    assert [event.action for event in events(repo)] == ["get", "create"]


def test_an_audit_that_cannot_be_written_stops_nobody(
    vault: Vault, repo: Repo, caplog: pytest.LogCaptureFixture
) -> None:
    directory = Path(repo.tree.path("audit"))
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
    directory.write_text("in the way")
    vault.put("db", "one")
    assert vault.get("db") == "one"
    assert "audit" in caplog.text


# Other providers -------------------------------------------------------------------------------


def test_environment_variables_can_be_read_and_nothing_else(repo: Repo) -> None:
    environ = {"CI_DB_PASSWORD": "one", "CI_EMPTY": "", "OTHER": "x", "MY_DB": "two"}
    vaults = Vaults(repo, environ=environ)
    vaults.create("environment", "ci")
    vault = vaults.open("ci")
    assert vault.get("db-password") == vault.get("DB_PASSWORD") == "one"
    assert vault.keys() == ["db_password"]
    for key in ("empty", "nothing"):
        with pytest.raises(SecretNotFoundError, match=f"CI_{key.upper()}"):
            vault.get(key)
    for use in (
        lambda: vault.put("x", "y"),
        lambda: vault.delete("db-password"),
        lambda: vault.annotate("db-password", notes="x"),
        vault.rotate,
    ):
        with pytest.raises(VaultUnsupportedError, match="environment"):
            use()
    vaults.create("environment", "mine", {"prefix": "MY_"})
    assert vaults.open("mine").get("db") == "two"
    with pytest.raises(ConfigError, match="prefix"):
        vaults.create("environment", "wrong", {"prefix": "a b"})


@pytest.fixture
def program(tmp_path: Path) -> dict[str, object]:
    return keeping_program(tmp_path)


def test_a_program_can_keep_secrets(vaults: Vaults, program: dict[str, object]) -> None:
    vaults.create("command", "team", program)
    vault = vaults.open("team")
    vault.put("db", "one; $(two) 'three'\n")
    assert vault.get("db") == "one; $(two) 'three'\n"
    assert vault.keys() == ["db"]
    assert vault.has("db")
    assert not vault.has("other")
    vault.delete("db")
    assert vault.keys() == []


def test_a_key_is_one_word_of_the_command(vaults: Vaults, tmp_path: Path) -> None:
    vaults.create("command", "team", {"get": "printf '%s|' {key} end"})
    assert vaults.open("team").get("a b; $(c)") == "a b; $(c)|end|"
    with pytest.raises(ValidationError, match="option"):
        vaults.open("team").get("--help")


@pytest.mark.parametrize(
    "command",
    ["false {key}", "no-such-program {key}", "printf \\\\377 {key}", "sh -c 'exit 3' {key}"],
)
def test_a_program_that_fails_is_named_and_nothing_it_said(vaults: Vaults, command: str) -> None:
    vaults.create("command", "team", {"get": command})
    with pytest.raises(VaultProviderError, match="the vault team could not get"):
        vaults.open("team").get("db")


def test_an_error_of_a_program_shows_no_secret(vaults: Vaults) -> None:
    settings = {"get": "true {key}", "put": "sh -c 'cat >&2; exit 1' {key}"}
    vaults.create("command", "team", settings)
    with pytest.raises(VaultProviderError) as failed:
        vaults.open("team").put("db", "hunter2")
    assert "hunter2" not in f"{failed.value!r} {failed.value.hint}"
    assert failed.value.__cause__ is None


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"put": "x {key}"},
        {"get": "pass show"},
        {"get": ""},
        {"get": []},
        {"get": [1]},
        {"get": "it's {key}"},
    ],
)
def test_a_command_without_sense_is_refused(vaults: Vaults, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        vaults.create("command", "team", settings)


def test_what_has_no_command_cannot_be_done(vaults: Vaults) -> None:
    vaults.create("command", "team", {"get": "echo {key}"})
    vault = vaults.open("team")
    for use in (lambda: vault.put("x", "y"), lambda: vault.delete("x"), vault.keys):
        with pytest.raises(VaultUnsupportedError, match="command"):
            use()


def test_another_package_can_bring_a_provider(
    vaults: Vaults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[swampstore.vaults]\n"
        "@acme/sm = theirs_vault:Theirs\n"
        "local_encryption = theirs_vault:Theirs\n"
    )
    (tmp_path / "theirs_vault.py").write_text(
        "from swampstore.vaults import Provider\n"
        "class Theirs(Provider):\n"
        "    type = '@acme/sm'\n"
        "    @classmethod\n"
        "    def open(cls, place): return cls()\n"
        "    def get(self, key): return key.upper()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    vaults.create("@acme/sm", "cloud", {"region": "eu"})
    assert vaults.open("cloud").get("db") == "DB"
    assert isinstance(vaults.open("cloud").provider, Provider)
    vaults.create("local_encryption", "ops")
    assert type(vaults.open("ops").provider).__module__.startswith("swampstore.")


# Migration -------------------------------------------------------------------------------------


def test_a_vault_keeps_its_name_and_its_secrets_with_another_type(
    vaults: Vaults, vault: Vault, program: dict[str, object], secrets: Path
) -> None:
    vault.put("db", "one")
    vault.put("api", "two")
    vault.annotate("db", notes="x")
    preview = migrate(vaults, "ops", "command", program, dry_run=True)
    assert preview.copied == ("api", "db")
    assert vaults.open("ops").config == vault.config
    done = migrate(vaults, "ops", "command", program)
    assert done.copied == ("api", "db")
    assert done.without_annotation == ("db",)
    moved = vaults.open("ops")
    assert (moved.config.type, moved.config.id) == ("command", vault.config.id)
    assert (moved.get("db"), moved.get("api")) == ("one", "two")
    assert len(vaults.all()[0]) == 1
    assert (secrets / "db.enc").exists(), "they stay where they were"

    back = migrate(vaults, "ops", "local_encryption")
    assert (back.copied, back.same) == ((), ("api", "db"))
    assert vaults.open("ops").get("db") == "one"


def test_of_two_files_that_come_from_each_other_none_is_removed(
    vaults: Vaults, vault: Vault, program: dict[str, object], repo_dir: Path
) -> None:
    migrate(vaults, "ops", "command", program)
    there = (repo_dir / f"vaults/command/{vault.config.id}.yaml").read_bytes()
    migrate(vaults, "ops", "local_encryption")
    (repo_dir / "vaults/command").mkdir(exist_ok=True)
    (repo_dir / f"vaults/command/{vault.config.id}.yaml").write_bytes(there)
    with vaults.changing():
        pass
    assert len([*repo_dir.glob("vaults/*/*.yaml")]) == 2
    assert [one.error.message for one in vaults.all()[1]] == ["several vaults are called ops"] * 2


def test_another_value_is_not_overwritten_unless_that_is_asked_for(
    vaults: Vaults, vault: Vault, program: dict[str, object], tmp_path: Path
) -> None:
    vault.put("db", "one")
    vault.put("api", "two")
    (tmp_path / "kept/db").write_text("other")
    with pytest.raises(AlreadyExistsError, match="db"):
        migrate(vaults, "ops", "command", program)
    assert not (tmp_path / "kept/api").exists()
    assert vaults.open("ops").config.type == "local_encryption"
    migrate(vaults, "ops", "command", program, overwrite=True)
    assert vaults.open("ops").get("db") == "one"


def test_a_place_that_loses_secrets_does_not_become_the_vault(
    vaults: Vaults, vault: Vault, program: dict[str, object]
) -> None:
    vault.put("db", "one")
    with pytest.raises(VaultProviderError, match="was not kept"):
        migrate(vaults, "ops", "command", {**program, "put": "true {key}"})
    assert vaults.open("ops").get("db") == "one"
    with pytest.raises(ValidationError, match="already"):
        migrate(vaults, "ops", "local_encryption")


def test_who_opened_a_vault_before_it_was_migrated_cannot_change_the_old_one(
    vaults: Vaults, vault: Vault, program: dict[str, object]
) -> None:
    vault.put("db", "one")
    migrate(vaults, "ops", "command", program)
    with pytest.raises(VaultError, match="is not what it was"):
        vault.put("db", "two")
    assert vaults.open("ops").get("db") == "one"
