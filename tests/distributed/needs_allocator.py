"""Stands for torch: reads the allocator's settings when it is imported, and never again."""

import os

assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
