"""The hidden-state store, and the capture worker that fills it from inside vLLM."""
