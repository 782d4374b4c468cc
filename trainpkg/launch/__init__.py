"""Start ranks on nodes and tell what went wrong. Nothing below this package imports torch."""
