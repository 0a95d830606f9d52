"""Memory managers to learn from: each shows one policy, is found by its name, and is not meant for daily use."""
