"""Observation of runs: progress, traces, and export to other tools."""
