"""What every package uses: configs, registries, files that are whole, random numbers."""
