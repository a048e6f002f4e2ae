"""Backups: everything that a datastore holds, as it was at one moment, in a store of its own.

`format` says what is in that store: content under its hash, and one manifest for each backup, which
is written last and makes it count. `create` makes a backup, from a directory (`local_source`) or
from a remote (`remote_source`); `verify` lists and examines backups, `restore` makes a repository
from one. Nothing here knows of vaults: whoever makes a backup says which secrets there are.
"""

from __future__ import annotations

from swampstore.relocate.backup.create import BackupReport, create_backup
from swampstore.relocate.backup.format import Manifest, SecretNames
from swampstore.relocate.backup.place import BackupPlace, open_place
from swampstore.relocate.backup.restore import RestoreReport, restore_backup
from swampstore.relocate.backup.verify import VerifyReport, verify_backups

__all__ = [
    "BackupPlace",
    "BackupReport",
    "Manifest",
    "RestoreReport",
    "SecretNames",
    "VerifyReport",
    "create_backup",
    "open_place",
    "restore_backup",
    "verify_backups",
]
