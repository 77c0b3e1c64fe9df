"""`python -m tta_diffusion.bench.speed`: needs torch, transformers, tokenizers, safetensors and numpy alone."""

from tta_diffusion.bench.speed.arguments import main

if __name__ == "__main__":
    main()
