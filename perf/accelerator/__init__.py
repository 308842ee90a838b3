"""What a step costs on one accelerator: memory, roofline, pictures of both."""
