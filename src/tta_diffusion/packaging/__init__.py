"""From a trained model to one that can be shipped: packing it into 8 bits or fewer, and what that costs."""
