"""The ways to spread one model, or its batch, over many ranks."""
