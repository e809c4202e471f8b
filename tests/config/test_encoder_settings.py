"""Layers of single leaves as settings: sections whose names are the user's to choose."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gossamer.config import code_in, from_dict, make_config, parse_train, resolve, to_dict
from gossamer.config.help import setting_groups, train_help
from gossamer.config.merging import Layer, merge
from gossamer.config.show import show_config
from gossamer.config.train_config import TrainConfig
from gossamer.config.tree import find_annotation
from gossamer.errors import ConfigError
from gossamer.policies.settings import EncoderConfig
from gossamer.sweep.file import read_sweep
from gossamer.sweep.presets import preset_of

IMAGE = EncoderConfig("nature", fc_size=64)


def typed(*words: str, configs: tuple[str, ...] = ()) -> tuple[Any, dict[str, str]]:
    config, origin = resolve(parse_train(["x:y", *words]).settings, configs=configs)
    return config.policy.encoders, origin


def file_of(folder: Path, text: str) -> str:
    path = folder / "settings.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    "words",
    [
        "--policy.encoders.image nature --policy.encoders.image.fc-size 64",
        "--policy.encoders.image.fc_size 64 --policy.encoders.image nature",
        "--policy.encoders.image.name=nature --policy.encoders.image.fc-size=64",
        '--policy.encoders {"image":{"name":"nature","fc_size":64}}',
        '--policy.encoders {"image":"nature"} --policy.encoders.image.fc-size 64',
        "--policy.encoders.image elite --policy.encoders.image nature --policy.encoders.image.fc-size 64",
    ],
)
def test_an_encoder_may_be_typed_in_any_form(words: str) -> None:
    encoders, origin = typed(*words.split())
    assert encoders == {"image": IMAGE}
    assert origin["policy.encoders.image.name"] == "command line"
    assert origin["policy.encoders.image.hidden_sizes"] == "default"


@pytest.mark.parametrize(
    "text",
    [
        'policy.encoders.image = "nature"\npolicy.encoders."pair/0" = "embedding"',
        '[policy.encoders]\nimage = "nature"\n"pair/0" = {name = "embedding"}',
        '[policy.encoders.image]\nname = "nature"\n[policy.encoders."pair/0"]\nname = "embedding"',
    ],
)
def test_an_encoder_may_be_written_in_any_form(tmp_path: Path, text: str) -> None:
    encoders, _ = typed(configs=(file_of(tmp_path, text),))
    assert encoders == {"image": EncoderConfig("nature"), "pair/0": EncoderConfig("embedding")}


def test_names_are_free_but_for_dots_and_hyphens() -> None:
    words = "--policy.encoders.state/left-arm mlp --policy.encoders.0 none --policy.encoders.no_image like:state/left-arm"
    encoders, _ = typed(*words.split())
    assert {name: x.name for name, x in encoders.items()} == {
        "state/left_arm": "mlp",
        "0": "none",
        "no_image": "like:state/left-arm",
    }


def test_a_kind_that_is_chosen_anew_has_none_of_the_sizes_below(tmp_path: Path) -> None:
    text = (
        '[policy.encoders.image]\nname = "nature"\nfc_size = 64\n[policy.encoders.x]\nfc_size = 8'
    )
    file = file_of(tmp_path, text)
    for words, expected in (
        ("--policy.encoders.image mlp", EncoderConfig("mlp")),
        ("--policy.encoders.image nature", IMAGE),
        ("--policy.encoders.image.fc-size 32", EncoderConfig("nature", fc_size=32)),
    ):
        encoders, _ = typed(*words.split(), configs=(file,))
        assert encoders["image"] == expected
    encoders, origin = typed("--policy.encoders.x", "impala", configs=(file,))
    assert encoders["x"] == EncoderConfig("impala", fc_size=8)
    assert origin["policy.encoders.x.fc_size"] == f"--config {file}"


def test_shown_saved_and_preset_settings_are_read_back() -> None:
    asked = {
        "image": "nature",
        "pair/0": {"name": "embedding", "embedding_size": 8},
        "über b": "none",
    }
    settings = {"env_id": "x:y", "policy": {"encoders": asked, "join_size": 32}}
    config, layers = resolve(given=settings)
    assert from_dict(tomllib.loads(show_config(config, layers))) == config
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    exported = json.loads(json.dumps(asdict(config.policy)))
    assert from_dict({"policy": exported}).policy == config.policy
    text, _ = preset_of(settings)
    assert make_config(settings=tomllib.loads(text)).policy == config.policy


def test_older_settings_have_no_encoders() -> None:
    before = to_dict(make_config("x:y"))
    del before["policy"]["encoders"], before["policy"]["join_size"]
    assert from_dict(before) == make_config("x:y")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--policy.encoders nature", "--policy.encoders is \"nature\"; it needs a name: --policy.encoders.NAME nature"),
        ("--policy.encoders.image natur", "--policy.encoders.image.name is \"natur\"; it must be one of auto, nature, impala, a3c, elite, mlp, one_hot, embedding, none or like:LEAF or module:NAME: --policy.encoders.image.name nature"),
        ("--policy.encoders.image.fcsize 3", "did you mean --policy.encoders.image.fc-size?"),
        ("--policy.encoders.image.fc-size -3", "in [0, 65536]"),
        ("--policy.encoders.image", "--policy.encoders.image needs a value"),
        ("--policy.join-size 0", "in [1, 65536]"),
        ("--policy.encoders [1]", "it must be a section of settings"),
        ('--policy.encoders {"image":3}', "policy.encoders.image is 3; it must be a section of settings"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_one_line(words: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        typed(*words.split())
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_code_of_the_users_own_is_found_but_not_leaves() -> None:
    encoders = {
        "image": "mine:Net",
        "other-one": {"name": "mine:Other"},
        "right": "like:image",
        "x": "mlp",
    }
    for policy in (
        {"encoders": encoders},
        {f"encoders.{name}": x for name, x in encoders.items()},
    ):
        assert code_in({"policy": policy}) == {
            "policy.encoders.image": "mine:Net",
            "policy.encoders.other_one.name": "mine:Other",
        }


def test_nothing_is_imported_for_settings_alone() -> None:
    encoders, _ = typed("--policy.encoders.image", "no_such_module:Net")
    assert encoders["image"].is_own


def test_help_and_settings_have_one_row_for_all_names() -> None:
    rows = [row for group in setting_groups() for row in group.rows]
    (row,) = (row for row in rows if row.name.startswith("policy.encoders"))
    assert row.name == "policy.encoders.NAME"
    assert row.values.endswith("none|like:LEAF|module:NAME")
    assert row.default == "auto"
    assert "--policy.encoders.NAME auto|nature" in train_help(every=True)


def test_every_name_has_a_type() -> None:
    for name in ("policy.encoders.image", "policy.encoders.0", "policy.encoders.1.name", "policy.encoders.a/b.fc_size"):  # fmt: skip
        assert find_annotation(TrainConfig, name) is not None, name
    for name in ("policy.encoders.image.x", "policy.encoders.", "policy.encoders.a.b.name"):
        assert find_annotation(TrainConfig, name) is None, name


def test_a_sweep_tries_encoders(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(
        'method = "grid"\n[settings]\nenv_id = "x:y"\n[search]\n'
        '"policy.encoders.image" = ["nature", "like:left"]\n'
        '"policy.encoders.pair/0.embedding_size" = {min = 4, max = 8, num = 2}\n'
    )
    sweep = read_sweep(str(path))
    text, config = sweep.preset(sweep.choice(3))
    expected = {"image": EncoderConfig("like:left"), "pair/0": EncoderConfig(embedding_size=8)}
    assert config.policy.encoders == expected
    assert make_config(settings=tomllib.loads(text)).policy.encoders == expected


def test_a_higher_layer_has_the_last_word() -> None:
    layers = [Layer("one", {"policy": {"encoders": {"a": "mlp", "b": "none"}}}), Layer("two", {"policy": {"encoders": {"a": "auto"}}})]  # fmt: skip
    config, origin = merge(TrainConfig, layers)
    assert config.policy.encoders == {"a": EncoderConfig(), "b": EncoderConfig("none")}
    assert origin["policy.encoders.a.name"] == "two"
