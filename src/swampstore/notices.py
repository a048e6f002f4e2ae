"""Things worth telling that are not errors, sent to the logger `swampstore`."""

from __future__ import annotations

from swampstore.escaping import escaped_lines


def notice(message: str, *details: object) -> None:
    """Log a warning. The logging machinery is only loaded when there is something to say.

    Nothing in the details can act on the terminal that it ends up on.
    """
    import logging

    told = (one if isinstance(one, int | float) else escaped_lines(str(one)) for one in details)
    logging.getLogger("swampstore").warning(message, *told)
