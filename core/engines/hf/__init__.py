"""The built-in engine: it samples from the module that trains."""
