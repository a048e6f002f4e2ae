"""Versioned data on disk: metadata, versions, the latest marker and deletion."""
