"""Snapshots of the table of artifacts: Parquet files beside the index, made anew where it changed.

A snapshot is a memory and never the truth. Rows of a shard count while the shard has the
fingerprint that it had, and single rows while the index gives their metadata the same hash;
whatever cannot be proven is read as if there were no snapshot. Start reading at `refresh`;
`source.remembered` is who reads snapshots.
See docs/decisions/0052-a-snapshot-is-believed-shard-by-shard.md.
"""
