"""What-if analyses of memory: replays, packings, plans, remedies and dry runs. `flnb.memory` exports their names."""
