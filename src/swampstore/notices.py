"""Things worth telling that are not errors, sent to the logger `swampstore`."""

from __future__ import annotations


def notice(message: str, *details: object) -> None:
    """Log a warning. The logging machinery is only loaded when there is something to say."""
    import logging

    logging.getLogger("swampstore").warning(message, *details)
