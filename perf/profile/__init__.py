"""A profiled step by layer and kind, and its hardware efficiency (paper 000, figure 3)."""
