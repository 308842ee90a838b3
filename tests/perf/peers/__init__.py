"""The loaders that ``loaders.py`` compares. Each module has ``LOADERS``: by name, a function from a task, its
folder and the settings of the loader to a function from an epoch to its batches."""
