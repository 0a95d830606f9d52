"""Communicators: one rank alone, ranks as threads of one process, MPI, and a wrapper that models a link."""
