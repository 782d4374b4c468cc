"""Checkpoints: what is in one, who writes it, which there are and which stay, and how its files lie on disk."""
