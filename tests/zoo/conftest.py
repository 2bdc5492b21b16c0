from tests.support.tiny_world import tiny, tiny_files

__all__ = ["tiny", "tiny_files"]
