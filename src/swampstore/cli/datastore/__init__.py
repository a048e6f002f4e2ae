"""The commands below `swampstore datastore`."""
