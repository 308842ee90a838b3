"""The figures and tables of the five papers: what they print, how this suite's values are compared with it."""
