"""How the processes of ranks come into being: one starter per way, and the last steps before a rank's own code."""
