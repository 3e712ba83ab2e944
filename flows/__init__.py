"""The hero run: its flow, its recipes and its command line."""
