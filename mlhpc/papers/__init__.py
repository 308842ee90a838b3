"""Compares the figures and tables of the five papers with this suite's values."""
