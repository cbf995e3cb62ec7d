"""Uses nothing."""

print(1 + 1)
