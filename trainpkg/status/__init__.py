"""All runs at this moment, on a terminal: what their files say, and Slurm's queue. Tables for later are `summarise`."""
