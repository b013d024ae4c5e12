"""Shared by the training scripts: options, data, models, the loop and its summary."""
