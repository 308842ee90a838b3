"""Runs observed: followed while they run, and written for other tools."""
