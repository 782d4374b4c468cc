"""What runs once per job, in `launch`: lock, roll call, generations of ranks, verdict."""
