"""What-if analyses of memory: replays, packings, plans, remedies and dry runs. Public as `flnb.memory`."""
