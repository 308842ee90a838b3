"""Observing runs: progress, and export to other tools."""
