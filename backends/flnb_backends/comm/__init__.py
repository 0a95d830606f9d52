"""Communicators: one rank alone, ranks as threads of one process, MPI."""
