"""The files of a run as plain values, and what is wrong with them. What the values mean is for `rows`."""
