"""Versioned data on disk: metadata, versions, the latest marker, deletion and retention."""
