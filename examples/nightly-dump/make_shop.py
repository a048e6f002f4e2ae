"""Make a small shop.db to try this with; every call adds an order."""

import sqlite3
import sys
from contextlib import closing

with closing(sqlite3.connect(sys.argv[1] if len(sys.argv) > 1 else "shop.db")) as database:
    database.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT)")
    database.execute("INSERT INTO orders (item) VALUES ('bicycle')")
    database.commit()
