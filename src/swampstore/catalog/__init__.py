"""The catalog: a row for every artifact version, and the questions it answers.

Start with `catalog`: every change of artifacts writes it through. `schema` has its tables and rows,
`database` its SQLite file, which can be thrown away: `rebuild` makes it again of what `disk_rows`
reads from the files, and `keeping_up` follows what other programs change. `select` answers queries
in the language of `query`, `words` finds the rows that mention a word, and `records` chooses with
the same language what is no artifact. `export` is what a namespace publishes of its catalog,
`foreign` what was pulled of others.

It may import `artifacts`, `files` and what is below them; it knows nothing of remotes.
"""
