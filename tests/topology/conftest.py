import sys
from pathlib import Path

# fakes and slow references that several test folders share
sys.path.insert(0, str(Path(__file__).parents[1] / "core_helpers"))
