"""Moving data to another place: another datastore, another namespace, a backup.

`setup` gives a repository another datastore: it prepares a destination, has `moving` copy and clean
up, or its `own_directory` become a part of a cache, and `settings` says what the configuration
becomes. `namespace` gives it a namespace, and takes
it away again. `backup` keeps everything of one moment elsewhere, and makes a repository from that.
Start with `setup`. This room may import `runs` and what is below it.
"""
