from tests.fixtures import tiny, tiny_files

__all__ = ["tiny", "tiny_files"]
