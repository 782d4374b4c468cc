"""What the values of one run mean: its row among the runs, those of its launches and evaluations, as columns."""
