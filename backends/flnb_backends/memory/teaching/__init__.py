"""Memory managers for teaching: each shows one policy of the textbooks and can be chosen by its name."""
