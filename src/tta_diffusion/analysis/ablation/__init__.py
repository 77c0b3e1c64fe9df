"""What allocation does: feedback x policy x steps, every policy beside the control that has the same mean noise."""
