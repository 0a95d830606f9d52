"""What-ifs about memory: replays, packings, plans, remedies, dry runs. Public as `flnb.memory`."""
