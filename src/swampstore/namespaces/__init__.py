"""Namespaces: several repositories in one datastore, each with a part of its own.

`manifests` says who has which namespace; `others` is what this repository knows of the others:
their catalogs, and their content when it is read. Giving a repository a namespace is
`relocate`'s. This room may import `sync` and what is below it.
"""

from swampstore.namespaces.manifests import Manifest, list_namespaces, register_namespace

__all__ = ["Manifest", "list_namespaces", "register_namespace"]
