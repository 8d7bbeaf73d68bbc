"""Measurements beside pylance: ratios of medians, taken side by side in one run. `make bench` runs them."""
