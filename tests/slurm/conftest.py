from integration.fixtures import tiny_llama

__all__ = ["tiny_llama"]
