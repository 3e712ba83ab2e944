"""Disk, manifests, child processes, the vLLM server, the hub and prompts: no torch, no Prefect."""
