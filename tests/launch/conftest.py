import sys
from pathlib import Path

# "broken_envs:Raises" must be importable here and in the processes that tests start
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "core_helpers"))
