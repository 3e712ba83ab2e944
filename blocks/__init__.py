"""Facts about a site, kept as Prefect blocks: the data volume, the vLLM engine and hub access."""
