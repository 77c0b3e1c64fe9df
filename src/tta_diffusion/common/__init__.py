"""What every room uses: configs, registries, files that are whole, random numbers."""
