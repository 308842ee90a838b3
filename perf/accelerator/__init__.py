"""The cost of a step on one accelerator: memory, roofline, and charts of both."""
