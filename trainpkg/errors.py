"""The one exception for what a user can mend; everything else that escapes is a bug of ours and keeps its traceback."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in the input or the surroundings: what was read, from where, what contradicts it, what to do.

    The command line prints the text without a traceback and ends with `status`.
    """

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status
