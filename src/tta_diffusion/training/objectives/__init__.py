"""What each diffusion regime is trained for."""
