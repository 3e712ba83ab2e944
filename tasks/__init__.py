"""The stages of a hero run, and the inner packages that do their work."""
