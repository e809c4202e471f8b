"""`--evaluation.video`: an evaluation episode of every new best policy as a video in the run folder."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import torch

from gossamer.errors import ConfigError
from gossamer.machine import MissingExtra
from gossamer.record.checkpoint import BEST, UnreadableError
from gossamer.record.runs import VIDEOS
from gossamer.roles.evaluation import Interrupted
from gossamer.run.checkpoint_contents import ScoredPolicy, facts_of, policy_of
from gossamer.run.video_or_window import record_video
from gossamer.system.reading import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from gossamer.config import TrainConfig
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.record.checkpoint import CheckpointStore
    from gossamer.record.folder import RunFolder


def refuse_no_videos(config: TrainConfig) -> None:
    """Refuse a run whose videos could not be made, before it begins.

    Raises:
        ConfigError: packages are missing, the environment has no pictures, or nothing is evaluated.
    """
    if not config.evaluation.video:
        return
    if not config.evaluation.every_seconds:
        raise ConfigError(
            "--evaluation.video shows the best policy, but --evaluation.every-seconds is 0, so none is chosen; leave one of "
            "them out"
        )
    if config.env_id.startswith("envpool:"):
        raise ConfigError(
            f"{config.env_id} cannot be rendered: gossamer shows no pictures of EnvPool; leave out --evaluation.video"
        )
    for package in ("imageio", "imageio_ffmpeg"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"--evaluation.video needs {package}", "video")


class BestVideos:
    """Records an episode of each best policy, always the same one, so that videos of a run can be compared.

    What goes wrong with pictures ends videos, not the run.

    Args:
        config: of the run.
        folder: of the run.
        store: where the best policy is.
        names: of the tensors of a policy.
        say: is told what goes wrong.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        store: CheckpointStore,
        names: list[str],
        say: Callable[[str], object],
    ):
        self._config, self._folder, self._store = config, folder, store
        self._names, self._say = names, say
        self._works = True

    def record(self, policy: ActorCritic, stop: Callable[[], bool]) -> None:
        """Record the best policy, if that has not been done yet.

        Args:
            policy: whose parameters may be replaced, set up for inference.
            stop: asked every step.

        Raises:
            Interrupted: `stop` has said so; nothing is left of the video.
        """
        if not self._works:
            return
        try:
            self._record(policy, stop)
        except Interrupted:
            raise
        except UnreadableError:  # the disk may answer next time
            pass
        except Exception as error:  # noqa: BLE001 - whatever an environment, a graphics library or an encoder raises
            self._works = False
            reason = visible(" ".join(str(error).split())[:300]) or type(error).__name__
            self._say(f"no video of the best policy, and no more in this session: {reason}")

    def _record(self, policy: ActorCritic, stop: Callable[[], bool]) -> None:
        if self._store.score(BEST) is None:
            return
        env_steps = facts_of(self._store.load(BEST, lambda _: False), ScoredPolicy).env_steps
        if env_steps is None:
            return
        path = self._folder.path / VIDEOS / f"best-{env_steps:012d}.mp4"
        if path.with_suffix(".json").exists():  # it was recorded before
            return
        best = self._store.load(BEST)
        tensors = policy_of(best.tensors)
        with torch.no_grad():
            for target, name in zip(policy.shared_tensors(), self._names, strict=True):
                target.copy_(tensors[name])
        policy.refresh()
        path.parent.mkdir(exist_ok=True)
        partial = path.with_name(f".{path.name}")
        try:
            result = record_video(
                self._config,
                policy,
                partial,
                seed=self._config.seed,
                greedy=self._config.evaluation.greedy,
                stop=stop,
            )
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        told = {
            "env_steps": env_steps,
            "updates": best.updates,
            "return": result.mean,
            "length": result.lengths[0],
        }
        self._folder.write_json(f"{VIDEOS}/{path.stem}.json", told)
