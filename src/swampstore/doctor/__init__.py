"""Examining a repository: what is wrong with it, what to do about it, and safe repairs.

An examination that is not asked to repair changes nothing: it neither heals nor fills the
catalog, and leaves interrupted changes as they are.
"""

from __future__ import annotations

from swampstore.doctor.examination import examine, unusable
from swampstore.doctor.findings import Completeness, Finding, Report

__all__ = ["Completeness", "Finding", "Report", "examine", "unusable"]
