"""Configuration: what can be set, who set it, and what is refused."""

from gossamer.config.arguments import Arguments, parse_train
from gossamer.config.check import check_ranges, most_of, validate
from gossamer.config.files import config_layer, preset_names, preset_summary
from gossamer.config.own_parts import refuse_unimportable
from gossamer.config.resolve import (
    code_in,
    explicit,
    from_dict,
    in_python,
    make_config,
    resolve,
    saved_settings,
    to_dict,
    with_ratio,
)
from gossamer.config.show import kinds, settings_table, show_config, train_help
from gossamer.config.train_config import EvaluationConfig, TrainConfig

__all__ = [
    "Arguments",
    "EvaluationConfig",
    "TrainConfig",
    "check_ranges",
    "code_in",
    "config_layer",
    "explicit",
    "from_dict",
    "in_python",
    "kinds",
    "make_config",
    "most_of",
    "parse_train",
    "preset_names",
    "preset_summary",
    "refuse_unimportable",
    "resolve",
    "saved_settings",
    "settings_table",
    "show_config",
    "to_dict",
    "train_help",
    "validate",
    "with_ratio",
]
