"""A profiled step by layer and kind, and its hardware efficiency (Ibrahim et al. 2021, figure 3)."""
