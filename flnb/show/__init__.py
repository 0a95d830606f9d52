"""What notebooks see of flnb's objects, and what flnb puts into notebooks."""
