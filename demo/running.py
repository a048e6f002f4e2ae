"""What is run leaves its results: commands, a class, a secret, and a workflow that is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import swampstore
from account import Account
from swampstore import open_repo

SECRET = "correct-horse-battery"  # noqa: S105 - what the demo must never be caught saying
HOST = "demo/host/here"
_DISKS = """\
type: command/shell
id: 5d0f2b0a-6f57-4c53-9f5e-0a4f8c2f9f10
name: disks
methods:
  execute:
    arguments:
      run: df -kP ${{ inputs.mount }}
inputs:
  type: object
  properties:
    mount: { type: string }
  required: [mount]
"""
_TOTAL = '''\
import swampstore


@swampstore.model("demo/total")
class Total:
    """Adds up what other models have found."""

    total = swampstore.Resource(lifetime="30d")

    def add(self, context, machines: list) -> None:
        states = [context.read_model_data(machine, "state") for machine in machines]
        load = sum(state["cpu"] for state in states)
        context.write_resource("total", "total", {"machines": len(states), "cpu": load})
'''
_WORKFLOW = """\
id: 9b2c6d52-6c0f-4d0e-9b7a-2d9a6f1d3c11
name: nightly
jobs:
  - name: night
    steps:
      - name: fetch
        task: { type: model_method, modelIdOrName: demo/step/fetch, methodName: work,
                      command: echo fetched }
      - name: copy
        dependsOn: [fetch]
        task: { type: model_method, modelIdOrName: demo/step/copy, methodName: work,
                command: "touch copying; until test -e power; do sleep 0.1; done; echo copied" }
      - name: check
        dependsOn: [copy]
        task: { type: assert, expr: "data.listVersions('demo/step/fetch', 'result') == [1]",
                message: fetch ran twice }
"""


def _write(account: Account, path: str, text: str) -> None:
    file = account.directory / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def add_up(directory: Path) -> int:
    """Run a method from Python."""
    with open_repo(directory, environ={}) as repo:
        machines = ["web-1", "web-2", "db-1"]
        result = swampstore.run(repo, "demo/total/all", "add", inputs={"machines": machines})
        return int(result.artifacts[0].attributes["machines"])


def run_something(account: Account) -> None:
    """Any command, a definition, and a class of Python are models with methods."""
    account.chapter("Run something")
    account.say("Any command can be a method of a model. What it prints is saved, and how it went.")
    account.run(f"swampstore run {HOST} kernel -- uname -sr")
    account.say("A definition says what there is to run, and which inputs it takes:")
    _write(account, "models/disks.yaml", _DISKS)
    account.run("cat models/disks.yaml")
    account.run("swampstore run disks execute --input mount=/")
    account.run("swampstore run disks execute", fails=True)
    account.say("And a class in models/total.py, run from Python:")
    _write(account, "models/total.py", _TOTAL)
    account.run("cat models/total.py")
    account.show_code(add_up)
    machines = add_up(account.directory)
    account.claim("the method has seen three machines", machines == 3)
    account.run("swampstore output list")
    with open_repo(account.directory, environ={}) as repo:
        printed = repo.latest("disks", "result").json()["stdout"]
        account.claim("what a command printed is data", "Mounted on" in printed)
        account.claim(
            "a run without its input never began", repo.list_versions("disks", "result") == [1]
        )


def use_a_secret(account: Account) -> None:
    """A run gets the value; whatever is kept, and whoever looks, does not."""
    account.chapter("Use a secret")
    account.run("swampstore vault create local_encryption ops > /dev/null")
    account.echo("swampstore vault put ops token   # the value comes from a prompt, or from stdin")
    subprocess.run(
        ["/bin/sh", "-c", "swampstore vault put ops token"],
        cwd=account.directory,
        env=account.environment(),
        input=f"{SECRET}\n",
        encoding="utf-8",
        check=True,
    )
    account.say("A command finds it in its environment, and what it says of it is redacted:")
    reference = "${{ vault.get('ops','token') }}"
    printed = account.ask(
        f'swampstore run {HOST} login --input "token=\\{reference}"'
        " -- sh -c 'echo I log in with $SWAMPSTORE_INPUT_TOKEN: ${#SWAMPSTORE_INPUT_TOKEN} letters'"
    )
    account.claim("the run had the secret", f"{len(SECRET)} letters" in printed)
    account.claim("nobody saw it", "with ***" in printed and SECRET not in printed)
    account.claim("it is in no file", files_with_the_secret(account.directory) == [])


def files_with_the_secret(directory: Path) -> list[Path]:
    """Return the files below a directory that say the secret."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return [path for path in files if SECRET.encode() in path.read_bytes()]


def kill_a_workflow(account: Account) -> None:
    """A workflow dies in the middle, and goes on where it was."""
    account.chapter("Kill a workflow, and go on")
    _write(account, "workflows/workflow-nightly.yaml", _WORKFLOW)
    account.run("swampstore workflow run nightly --dry-run")
    account.say("While its second step is at work, the power goes (-9):")
    account.echo("swampstore workflow run nightly")
    status = _kill_it(account)
    account.console.print("Killed")
    account.claim("the workflow was killed", status == -signal.SIGKILL)
    printed = account.ask("swampstore workflow history")
    run = "".join(re.findall(r"\b[0-9a-f]{8}\b", printed)[:1])
    account.claim("its record shows where it was", "2/3" in printed and "copy" in printed)
    (account.directory / "power").touch()
    account.run(f"swampstore workflow resume {run} 2> /dev/null")
    with open_repo(account.directory, environ={}) as repo:
        versions = [repo.list_versions(f"demo/step/{step}", "result") for step in ("fetch", "copy")]
        account.claim("no step that had finished ran again", versions[0] == [1])
        account.claim("the other one ran to its end", len(versions[1]) == 1)


def _kill_it(account: Account) -> int:
    process = subprocess.Popen(
        ["swampstore", "workflow", "run", "nightly"],  # noqa: S607 - as a person would
        cwd=account.directory,
        env=account.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    at_work = account.directory / "copying"
    while not at_work.exists() and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
