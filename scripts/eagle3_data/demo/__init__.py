"""Demo targets: tiny models with the structure of real ones, trained on the spot, so that the whole workflow
runs without a download."""
