"""Tables and plots from the files of runs. Knows only files; imports no torch."""
