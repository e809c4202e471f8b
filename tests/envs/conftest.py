import sys
from pathlib import Path

# "counting_envs:Counting" must be importable here and in worker processes, which inherit sys.path
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "core_helpers"))
