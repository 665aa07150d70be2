"""Measure, explain and decide speculative decoding on your own workload."""

__version__ = "0.1.0"
