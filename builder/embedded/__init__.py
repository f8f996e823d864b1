"""The embedded model: a small Stable Diffusion of emoji, trained here, that comes with the repository.

`python -m builder.embedded data | train | evaluate | export`.
"""
