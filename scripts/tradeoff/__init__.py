"""Accuracy against bytes: the parts of scripts/frontier.py."""
