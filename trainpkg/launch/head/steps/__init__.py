"""Programs that are started on the nodes, by srun, by mpirun or on this machine, and what they say while they run."""
