"""What traces tell: how much a text fluctuates while it is written, and how much of the guidance it forgets."""
