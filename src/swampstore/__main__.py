"""`python -m swampstore` is the command `swampstore`."""

from __future__ import annotations

import sys

from swampstore.cli import main

sys.exit(main())
