"""The catalog: an index of every artifact version, and the questions it answers."""
