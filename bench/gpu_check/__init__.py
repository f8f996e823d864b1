"""All that has to be measured on a card, in one command and about ten minutes: `python -m bench gpu-check`."""
