"""The exercises of lesson 16, Talk less: compressed gradients, sparse averages, local steps, an adaptive period."""
