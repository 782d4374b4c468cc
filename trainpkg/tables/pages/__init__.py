"""Tables for a person with a browser: which there are, and how they look."""
