"""Namespaces: several repositories in one datastore, each with a part of its own.

Start with `manifests`, which says who has which namespace. `others` is what this repository knows
of the others, each of which is an `other`; `catalog_pull` fetches their catalogs. Giving a
repository a namespace is `relocate`'s. This room may import `sync` and what is below it.
"""

from swampstore.namespaces.manifests import Manifest, list_namespaces, register_namespace

__all__ = ["Manifest", "list_namespaces", "register_namespace"]
