"""Being written on branch `tools`."""
