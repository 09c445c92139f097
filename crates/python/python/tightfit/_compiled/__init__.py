"""The byte budget inside `torch.compile`: what is read of a graph, the division of it, and the ways in."""
