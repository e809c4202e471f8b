"""What a run leaves on disk and on the screen. Importing any module here does not import torch."""
