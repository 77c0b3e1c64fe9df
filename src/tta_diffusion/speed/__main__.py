"""`python -m tta_diffusion.speed`: needs nothing beyond torch, transformers, tokenizers, safetensors and numpy."""

from tta_diffusion.speed.arguments import main

if __name__ == "__main__":
    main()
