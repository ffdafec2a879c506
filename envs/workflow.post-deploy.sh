#!/bin/sh
# Run by Snakemake in the project's folder, inside the new conda environment. ACCELERATOR=cuda in the environment chooses NVIDIA GPUs.
# Snakemake rebuilds the environment when this file changes, so it contains the hash of the pins (a test keeps it current):
# pins 5161bd2ae4257b84
set -eu
exec sh envs/install.sh python "${ACCELERATOR:-cpu}"
