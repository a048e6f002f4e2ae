"""Namespaces: several repositories in one datastore, each with a part of its own."""

from swampstore.namespaces.manifests import Manifest, list_namespaces, register_namespace
from swampstore.namespaces.migrating import Migration, migrate, preview_migration
from swampstore.namespaces.switching import (
    NamespaceSet,
    NamespaceUnset,
    set_namespace,
    unset_namespace,
)

__all__ = [
    "Manifest",
    "Migration",
    "NamespaceSet",
    "NamespaceUnset",
    "list_namespaces",
    "migrate",
    "preview_migration",
    "register_namespace",
    "set_namespace",
    "unset_namespace",
]
