"""The model card of an exported policy: Markdown below a header in YAML, as Hugging Face's Hub reads both."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.system.reading import clipped, visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gossamer.roles.evaluation import Evaluation

MAX_ROWS = 60
"""Most settings that a card lists; config.json has all."""


def model_card(
    description: Mapping[str, Any],
    settings: Mapping[str, Any],
    scores: Evaluation | None,
    *,
    seed: int,
    video: bool,
    layers: Sequence[str] = (),
) -> str:
    """Return README.md.

    Args:
        description: of the policy, as the other formats hold it.
        settings: by dotted name, those that the run was told.
        scores: of greedy episodes; None: none were played.
        seed: of those episodes.
        video: whether a video of an episode lies beside it.
        layers: names of the network's layers that are the user's own.
    """
    run, env = description["run"], _plain(description["env_id"])
    algorithm = _plain(run["algorithm"])
    lines = [
        "---",
        *_header(env, algorithm, scores),
        "---",
        "",
        f"# {algorithm} on {env}",
        "",
        f"A policy trained by gossamer {_plain(description['gossamer'])}: {whose_in_words(run)}.",
        "",
        f"Protocol: {_plain(description['protocol'])}",
        "",
    ]
    if video:
        lines += ["![An episode](replay.mp4)", ""]
    lines += ["## Scores", "", *_scores(scores, run, seed), ""]
    lines += [
        "## Use",
        "",
        "```python",
        *_playing(description, layers),
        "```",
        "",
        "`config.json` says how the environment is made and how observations and actions are laid out.",
        "",
        "## Training",
        "",
        "| setting | value |",
        "|---|---|",
        f"| seed | {run['seed']} |",
        f"| learners | {run['num_learners']} ({_plain(run['topology'])}) |",
        f"| env steps | {_count(run['env_steps'])} |",
        f"| updates | {_count(run['updates'])} |",
        *(
            f"| {_plain(name)} | {_plain(json.dumps(x))} |"
            for name, x in list(settings.items())[:MAX_ROWS]
        ),
        "",
        "These are the settings that were given; `config.json` has all."
        if settings
        else "`config.json` has all settings.",
        "",
    ]
    return "\n".join(lines)


def _playing(description: Mapping[str, Any], layers: Sequence[str]) -> list[str]:
    """Lines of a program that plays an episode."""
    environment: dict[str, Any] = description["environment"]
    several = environment["make"] == "ale_py.vector_env.AtariVectorEnv" or environment[
        "make"
    ].startswith("envpool.")
    imports, made = _making(environment)
    fed = ", reward=reward" if "last_reward" in description["inputs"] else ""
    mask, info = description.get("mask", {}), "_"
    if mask.get("from") == "info":  # one in an observation is found there
        fed, info = f"{fed}, mask=info[{json.dumps(mask['key'])}]", "info"
    ended = "bool(terminated[0] or truncated[0])" if several else "terminated or truncated"
    task = environment.get("task_seed")
    stuck = environment.get("stuck_steps")  # without a reward, after which training cut an episode
    counted = ["    quiet_steps = 0 if reward else quiet_steps + 1"] if stuck else []
    return [
        *imports,
        "from gossamer.export.hub import load_hub",
        "",
        *_loading(layers),
        f"env = {made}",
        *(
            [f'env.get_wrapper_attr("set_task")({task})  # the first task of training']
            if task is not None
            else []
        ),
        f"obs, {info} = env.reset({'' if environment['make'].startswith('envpool.') else 'seed=1'})",
        "state, score, ended = None, 0.0, False",
        *(["quiet_steps = 0"] if stuck else []),
        *(["reward = 0.0"] if "last_reward" in description["inputs"] else []),
        "while not ended:",
        f"    action, state = policy.act(obs, state{fed})",
        f"    obs, reward, terminated, truncated, {info} = env.step(action)",
        f"    score += float(reward{'[0]' if several else ''})",
        *counted,
        f"    ended = {ended}{f' or quiet_steps == {stuck}' if stuck else ''}",
        "print(score)",
    ]


def _loading(layers: Sequence[str]) -> list[str]:
    """Lines that load the policy from the card's folder."""
    if not layers:
        return ['policy = load_hub(".")  # this folder']
    return [
        f"# This imports {', '.join(layers)}, which this folder does not hold.",
        'policy = load_hub(".", trust=True)  # this folder',
    ]


def _making(environment: Mapping[str, Any]) -> tuple[list[str], str]:
    """Return lines that import what makes an environment, and the call of it."""
    made: str = environment["make"]
    arguments: dict[str, Any] = environment["arguments"]
    if made == "gymnasium.make":
        lines = ["import gymnasium"]
        if (needed := environment.get("import")) == "gossamer.envs.multitask":
            lines += ["from gossamer.envs import multitask", "", "multitask.register()"]
        elif needed:
            lines += [f"import {needed}"]
        rest = ", ".join(f"{name}={x!r}" for name, x in arguments.items() if name != "id")
        return lines, f"gymnasium.make({arguments['id']!r}, {rest})"
    if made == "ale_py.vector_env.AtariVectorEnv":
        rest = ", ".join(f"{name}={x!r}" for name, x in arguments.items() if name != "game")
        return (
            ["from ale_py.vector_env import AtariVectorEnv"],
            f"AtariVectorEnv({arguments['game']!r}, num_envs=1, {rest})",
        )
    if made.startswith("envpool."):
        rest = ", ".join(f"{name}={x!r}" for name, x in arguments.items() if name != "task_id")
        return ["import envpool"], f"{made}({arguments['task_id']!r}, num_envs=1, {rest})"
    module, _, name = made.rpartition(":")
    lines, call = [f"from {module} import {name}"], f"{name}()"
    if limit := environment.get("max_episode_steps"):
        lines += ["from gymnasium.wrappers import TimeLimit"]
        call = f"TimeLimit({call}, max_episode_steps={limit})"
    return lines, call


def _header(env: str, algorithm: str, scores: Evaluation | None) -> list[str]:
    """Lines of YAML; every text is quoted, as JSON quotes it, which YAML reads alike."""
    tags = list(
        dict.fromkeys(
            [env, algorithm, "deep-reinforcement-learning", "reinforcement-learning", "gossamer"]
        )
    )
    lines = [
        "library_name: gossamer",
        "pipeline_tag: reinforcement-learning",
        "tags:",
        *(f"- {_quoted(tag)}" for tag in tags),
        "model-index:",
        f"- name: {_quoted(f'{algorithm}-{env}')}",
    ]
    if scores is None:
        return [*lines, "  results: []"]
    score = f"{scores.mean:.2f} +/- {np.std(scores.returns):.2f}"
    return [
        *lines,
        "  results:",
        "  - task:",
        "      type: reinforcement-learning",
        "      name: reinforcement-learning",
        "    dataset:",
        f"      name: {_quoted(env)}",
        f"      type: {_quoted(env)}",
        "    metrics:",
        "    - type: mean_reward",
        f"      value: {_quoted(score)}",
        "      name: mean_reward",
        "      verified: false",
    ]


def _scores(scores: Evaluation | None, run: Mapping[str, Any], seed: int) -> list[str]:
    lines: list[str] = []
    if scores is None:
        lines.append("No episodes were played for this card.")
    else:
        lines += [
            "| episodes | seed | mean return | standard error | standard deviation | lowest | highest | cut by a time limit |",
            "|---|---|---|---|---|---|---|---|",
            _row(scores, f"{len(scores.returns)}", seed),
        ]
        if scores.held_out is not None:
            lines.append(
                _row(scores.held_out, f"{len(scores.held_out.returns)}, tasks held out", seed)
            )
        lines += [
            "",
            "Full episodes, greedy actions, rewards unclipped; training saw none of their seeds.",
        ]
    if run["best_evaluation"] is not None:
        lines += ["", f"Score by which the run kept this policy: {run['best_evaluation']:.4g}."]
    return lines


def _row(scores: Evaluation, episodes: str, seed: int) -> str:
    numbers = (
        scores.mean,
        scores.standard_error,
        float(np.std(scores.returns)),
        min(scores.returns),
        max(scores.returns),
    )
    return (
        f"| {episodes} | {seed} | {' | '.join(f'{x:.4g}' for x in numbers)} | {scores.truncated} |"
    )


def whose_in_words(run: Mapping[str, Any]) -> str:
    """Say which policy of a run was exported."""
    found = f"checkpoint {_plain(run['checkpoint'])} of run {_plain(run['name'])}"
    if run["num_learners"] == 1:
        return found
    if run["learner"] == "average":
        size = run["num_learners"]
        there = size - len(run["absent_learners"])
        return f"{found}, average of {there} {f'of {size} ' * (there < size)}learners"
    return f"{found}, learner {_plain(run['learner'])} of {run['num_learners']}"


def _count(number: Any) -> str:
    return "unknown" if number is None else f"{number:,}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _plain(x: Any) -> str:
    """A stranger's text as a single piece of Markdown: without what begins a table cell, code, a link or a tag."""
    text = visible(clipped(" ".join(str(x).split()), 300))
    return "".join(f"\\{c}" if c in "|`[]<>" else c for c in text)
