"""The edges: one module or package for each thing outside. They do not know each other."""
