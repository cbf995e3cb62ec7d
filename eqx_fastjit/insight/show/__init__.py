"""How it is said: the report, as text, as a page and in the log."""
