"""What people would use instead, each as its own documentation has it.

Scripts; they know of this package its models and data at most, so that all train the same model on the same samples.
"""
