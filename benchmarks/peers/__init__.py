"""The same models in other frameworks, for comparison: nothing here is part of flnb or of its lock file."""
