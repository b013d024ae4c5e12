"""Parts of bench_links.py."""
