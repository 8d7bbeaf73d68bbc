"""Benchmarks against pylance: ratios of medians, measured in turn in one run. `make bench` runs them."""
