"""What is said to those who type another trainer's name for a setting."""

from __future__ import annotations

import re

import pytest

from gossamer.config import TrainConfig, make_config, parse_train, resolve
from gossamer.config.suggestions import ELSEWHERE, EXPLAINED
from gossamer.config.tree import names_of
from gossamer.errors import ConfigError


def refusal(*words: str) -> str:
    """Return the one line that refuses a command."""
    with pytest.raises(ConfigError) as caught:
        resolve(parse_train(["CartPole-v1", *words]).settings)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        # Stable-Baselines3
        ("n_steps", "--unroll-length"),
        ("n_epochs", "--algorithm.passes"),
        ("ent_coef", "--algorithm.entropy-cost"),
        ("clip_range", "--algorithm.clip-ratio"),
        ("clip_range_vf", "--algorithm.clip-value"),
        ("gae_lambda", "--algorithm.trace-lambda"),
        ("net_arch", "--policy.hidden-sizes"),
        ("activation_fn", "--policy.activation"),
        ("log_std_init", "--policy.init-log-std"),
        ("features_extractor_class", "--policy.torso"),
        ("lstm_hidden_size", "--policy.core-size"),
        ("norm_obs", "--policy.normalize-obs"),
        ("clip_obs", "--policy.obs-clip"),
        ("norm_reward", "--algorithm.value-norm"),
        ("n_stack", "--env.frame-stack"),
        ("reward_threshold", "--stop-at-return"),
        ("n_eval_episodes", "--evaluation.episodes"),
        ("tensorboard_log", "--tensorboard"),
        ("rms_prop_eps", "--optimizer.epsilon"),
        # CleanRL
        ("num_steps", "--unroll-length"),
        ("update_epochs", "--algorithm.passes"),
        ("clip_coef", "--algorithm.clip-ratio"),
        ("norm_adv", "--algorithm.normalize-advantage"),
        ("track", "--wandb"),
        ("capture_video", "--evaluation.video"),
        ("exp_name", "--run-folder"),
        ("torch_deterministic", "--deterministic"),
        ("cuda", "--device"),
        ("total_timesteps", "--total-env-steps"),
        # RLlib
        ("rollout_fragment_length", "--unroll-length"),
        ("lambda_", "--algorithm.trace-lambda"),
        ("clip_param", "--algorithm.clip-ratio"),
        ("entropy_coeff", "--algorithm.entropy-cost"),
        ("grad_clip", "--optimizer.max-grad-norm"),
        ("fcnet_hiddens", "--policy.hidden-sizes"),
        ("fcnet_activation", "--policy.activation"),
        ("lstm_cell_size", "--policy.core-size"),
        ("evaluation_duration", "--evaluation.episodes"),
        ("vtrace_clip_rho_threshold", "--algorithm.clip-rho"),
        ("vtrace_clip_pg_rho_threshold", "--algorithm.clip-pg-rho"),
        ("num_learners_per_process", "--learners-per-process"),
        # Sample Factory
        ("rollout", "--unroll-length"),
        ("num_epochs", "--algorithm.passes"),
        ("num_batches_per_epoch", "--algorithm.num-minibatches"),
        ("worker_num_splits", "--env-groups"),
        ("policy_workers_per_policy", "--actor-threads"),
        ("ppo_clip_ratio", "--algorithm.clip-ratio"),
        ("ppo_clip_value", "--algorithm.clip-value"),
        ("exploration_loss_coeff", "--algorithm.entropy-cost"),
        ("normalize_input", "--policy.normalize-obs"),
        ("normalize_returns", "--algorithm.value-norm"),
        ("lr_schedule_kl_threshold", "--algorithm.target-kl-nats"),
        ("vtrace_rho", "--algorithm.clip-rho"),
        ("vtrace_c", "--algorithm.clip-c"),
        ("rnn_size", "--policy.core-size"),
        ("rnn_type", "--policy.core"),
        ("rnn_num_layers", "--policy.core-layers"),
        ("encoder_mlp_layers", "--policy.hidden-sizes"),
        ("encoder_conv_architecture", "--policy.torso"),
        ("nonlinearity", "--policy.activation"),
        ("adam_eps", "--optimizer.epsilon"),
        ("train_for_seconds", "--stop-after-seconds"),
        ("save_every_sec", "--checkpoint-every-seconds"),
        ("experiment", "--run-folder"),
        ("train_dir", "--run-folder"),
        ("with_wandb", "--wandb"),
        ("eval_deterministic", "--evaluation.greedy"),
        ("env_frameskip", "--env.frame-skip"),
        ("env_framestack", "--env.frame-stack"),
    ],
)
def test_another_name_leads_to_ours(theirs: str, ours: str) -> None:
    assert refusal(f"--{theirs}", "1").endswith(f" is not a setting; did you mean {ours}?")


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        ("batch-size", "--num-envs x --unroll-length / --algorithm.num-minibatches"),
        ("minibatch_size", "--num-envs x --unroll-length / --algorithm.num-minibatches"),
        ("train_batch_size", "a batch has --num-envs x --unroll-length rows"),
        ("train_batch_size_per_learner", "a batch has --num-envs x --unroll-length rows"),
        ("num_workers", "--env.workers"),
        ("num_env_runners", "--actors-per-learner"),
        ("num_envs_per_worker", "--num-envs counts all environments of a learner"),
        ("num_envs_per_env_runner", "--num-envs counts all environments of a learner"),
        ("train_for_env_steps", "--total-env-steps counts decisions"),
        ("shuffle_minibatches", "--algorithm.deal rows"),
        ("num_gpus_per_learner", "--cluster.gpus-per-learner"),
        ("explore", "--evaluation.greedy"),
        ("callback", "on_row"),
        ("anneal_lr", "--optimizer.schedule linear"),
        ("no_anneal_lr", "--optimizer.schedule constant"),
        ("target_kl", "--algorithm.max-kl-nats"),
        ("kl_target", "--algorithm.target-kl-nats"),
        ("use_rnn", "--policy.core gru"),
        ("use_lstm", "--policy.core lstm"),
        ("recurrence", "--unroll-length"),
        ("use_sde", "there is no state-dependent exploration"),
        ("clip_vloss", "--algorithm.clip-value"),
        ("vf_clip_param", "no squared error is capped"),
        ("with_vtrace", "algorithm:vtrace"),
        ("with_pbt", "no population-based training"),
        ("num_policies", "--num-learners"),
        ("max_policy_lag", "--lag"),
        ("async_rl", "--lag 0"),
        ("serial_mode", "--placement inline"),
        ("restart_behavior", "--resume"),
        ("reset_num_timesteps", "--resume"),
        ("resume_from", "--resume"),
        ("preset", "--config NAME"),
        ("num_seeds", "--seeds N"),
        ("eval_freq", "--evaluation.every-seconds"),
        ("save_freq", "--checkpoint-every-seconds"),
        ("reward_scale", "--algorithm.value-norm"),
        ("vf_share_layers", "--policy.separate-value"),
        ("share_features_extractor", "separate in Stable-Baselines3 either way"),
        ("vf_coef", "--algorithm.value-cost multiplies half the squared error"),
        ("vf_loss_coeff", "set twice its value"),
        ("value_loss_coeff", "set twice its value"),
        ("alpha", "--optimizer.decay is RMSProp's decay"),
        ("max_steps", "--max-episode-steps an episode"),
        ("total_environment_frames", "num_action_repeats"),
        ("target_network_update_freq", "circular_buffer_num_batches"),
        ("policy", "--policy.torso"),
        ("policy.lstm", "--policy.core lstm"),
        ("env.action-mask", "--env.mask"),
    ],
)
def test_where_no_setting_is_its_equal_a_line_says_what_is(theirs: str, says: str) -> None:
    assert says in refusal(f"--{theirs}", "1").partition(" is not a setting; ")[2]


def test_a_path_that_is_nearly_right_is_corrected() -> None:
    assert refusal("--policy.encoder.image", "a3c").endswith(
        "did you mean --policy.encoders.image?"
    )


def test_a_switch_that_is_turned_off_is_not_suggested_on() -> None:
    assert refusal("--no-norm-adv").endswith("did you mean --no-algorithm.normalize-advantage?")
    assert refusal("--no-track").endswith("did you mean --no-wandb?")
    assert refusal("--no-cuda").endswith("did you mean --device?")


@pytest.mark.parametrize("theirs", ["env-id", "env-name", "gym-id", "env"])
def test_the_environment_has_no_flag(theirs: str) -> None:
    assert "type the environment's id alone" in refusal(f"--{theirs}", "CartPole-v1")


def test_files_and_programs_read_names_as_they_write_them() -> None:
    with pytest.raises(ConfigError) as caught:
        make_config("CartPole-v1", {"batch_size": 64})
    line = str(caught.value)
    assert "num_envs x unroll_length / algorithm.num_minibatches" in line
    assert "--" not in line


def test_what_is_explained_names_settings_that_exist() -> None:
    known = {*names_of(TrainConfig), "resume"}
    others = [name for names in EXPLAINED for name in names]
    assert len(others) == len(set(others))
    assert not set(others) & {x for names in ELSEWHERE.values() for x in names}
    assert not set(others) & {name.rpartition(".")[2] for name in known}
    for text in EXPLAINED.values():
        assert set(re.findall(r"\{(.*?)\}", text)) <= known, text
