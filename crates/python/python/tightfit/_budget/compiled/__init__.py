"""The byte budget inside `torch.compile`: the reader of joint graphs, the planner that divides them, and the entry points."""
