"""What can be known before the target model is loaded: stage A (static, this package) and stage B (the
canary).

Stage A reads source text and records; it imports neither vLLM nor torch. Each question has its module; each
returns findings, and `report` puts them together.
"""
