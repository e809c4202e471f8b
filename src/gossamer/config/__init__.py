"""Configuration: what can be set, who set it, and what is refused."""

from gossamer.config.arguments import Arguments as Arguments
from gossamer.config.arguments import parse_train as parse_train
from gossamer.config.check import check_ranges as check_ranges
from gossamer.config.check import validate as validate
from gossamer.config.files import preset_names as preset_names
from gossamer.config.files import preset_summary as preset_summary
from gossamer.config.help import kinds as kinds
from gossamer.config.help import train_help as train_help
from gossamer.config.layers import FOR_REPLAYS as FOR_REPLAYS
from gossamer.config.layers import RESUMED as RESUMED
from gossamer.config.layers import explicit as explicit
from gossamer.config.layers import from_dict as from_dict
from gossamer.config.layers import gather_layers as gather_layers
from gossamer.config.layers import make_config as make_config
from gossamer.config.layers import merge_layers as merge_layers
from gossamer.config.layers import resolve as resolve
from gossamer.config.layers import to_dict as to_dict
from gossamer.config.layers import with_ratio as with_ratio
from gossamer.config.own_parts import refuse_unimportable as refuse_unimportable
from gossamer.config.saved_settings import code_in as code_in
from gossamer.config.saved_settings import in_python as in_python
from gossamer.config.saved_settings import saved_settings as saved_settings
from gossamer.config.show import show_config as show_config
from gossamer.config.train_config import EvaluationConfig as EvaluationConfig
from gossamer.config.train_config import TrainConfig as TrainConfig
