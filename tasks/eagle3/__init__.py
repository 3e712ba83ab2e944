"""EAGLE-3 in plain torch: the drafter, its training and the form that vLLM serves."""
