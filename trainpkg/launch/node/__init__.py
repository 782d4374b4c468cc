"""What runs once per node, in `node`, with the standard library alone: ranks started, watched and ended."""
