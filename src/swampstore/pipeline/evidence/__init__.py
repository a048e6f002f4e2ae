"""What there is to tell about places: index documents, entries, objects and content.

`verify` and `reindex` gather it in tasks, bring together what belongs to one path or to one data
name, and judge it there. Rows are small and have one shape, so that Spark has little to do but to
move them. Start reading at `gathering`; `reading` is about content,
`index_state` about the documents.
"""
