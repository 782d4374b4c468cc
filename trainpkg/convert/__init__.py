"""Configs of other trainers made into recipes; Apple's CoreNet so far.

command  the subcommand `convert`
leaves   a YAML file as dotted keys with their lines
names    each option of CoreNet, and what it is called here or why it is not
corenet  the recipe: what both have, with CoreNet's defaults where its file is silent
"""
