"""Keeping a local cache and a shared remote equal, at a cost proportional to what changed."""
