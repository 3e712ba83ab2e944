"""What a run will write, hold in memory, take and cost: arithmetic on the recipe, without torch, Prefect or network."""
