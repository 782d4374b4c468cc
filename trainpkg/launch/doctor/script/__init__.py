"""`doctor --script FILE`: what is known to go wrong in a batch script, read as text and never run.

words      quotes and expansions            request     the #SBATCH lines
commands   simple commands in order         options     what sbatch and srun know
reading    all of it as a `Script`          variables   what Slurm sets
parts      steps, calls, assignments        arithmetic  what a number may be
launchers  what starts training             rules       the table of rules, from rules_*.py
"""
