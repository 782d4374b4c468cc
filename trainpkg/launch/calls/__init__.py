"""`trainpkg.launch.spawn`: a function called in several processes of this machine, from Python."""
