"""Reading what other namespaces of the same datastore hold: their catalogs and their content."""
