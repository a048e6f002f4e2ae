"""Moving data to another place: setting up another datastore, and taking everything along.

`setup` is where to start reading: it prepares a destination, has `moving` copy and clean up, and
`settings` says what the configuration becomes. It may use `sync` and everything below it.
"""
