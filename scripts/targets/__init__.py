"""Targets of `make bench`, for scripts/bench_targets.py."""
