"""Serve a policy that `gossamer export --format onnx` has written, over HTTP, without gossamer or torch.

    pip install numpy onnxruntime
    python examples/serve.py CartPole-v1-ppo.onnx --port 8000
    curl http://127.0.0.1:8000/
    curl http://127.0.0.1:8000/act -d '{"session": "a", "obs": [0.1, 0, 0, 0]}'

A POST to /act is an observation as JSON, with these keys; the answer is {"action": ..., "value": ...}:

    obs      the environment's observation: lists of numbers, an object for a Dict, a list for a Tuple
    info     the environment's info, where the mask of actions is in it: {"action_mask": [1, 0, ...]}
    session  name of an episode: a recurrent policy remembers earlier observations of the same session
    start    true: the session begins anew
    reward   of the step before, if the policy was trained with policy.last_reward
    sample   true: draw the action instead of taking the likeliest

A GET of / returns what the policy takes: the metadata of the file.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import threading
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from play_onnx import Policy

MAX_SESSIONS = 10_000
"""Sessions that are remembered; of more, the one that was used least recently is forgotten."""
MAX_BYTES = 1 << 24


class PolicyServer(ThreadingHTTPServer):
    """Answers observations with actions, one at a time."""

    def __init__(self, file: str, host: str, port: int, seed: int | None = None):
        self.policy = Policy(file)
        self.sessions: OrderedDict[str, Policy] = OrderedDict()
        self.rng, self.turn = np.random.default_rng(seed), threading.Lock()
        super().__init__((host, port), Handler)

    def act(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the action and value for what a client has posted."""
        with self.turn:
            policy = self.policy_of(asked)
            if "obs" not in asked:
                raise ValueError(f"a request needs obs; it has {', '.join(asked) or 'nothing'}")
            policy.hear(float(asked.get("reward", 0.0)))
            outputs = policy(asked["obs"], asked.get("info", {}))
            sampled = asked.get("sample", False)
            action = policy.sample(outputs, self.rng) if sampled else policy.action_of(outputs)
            return {"action": action, "value": outputs["value"][0]}

    def policy_of(self, asked: dict[str, Any]) -> Policy:
        """Return the policy with the memory of a session; without a session, an episode begins."""
        session = asked.get("session")
        known = self.sessions.pop(str(session), None)
        if known is None or asked.get("start") or session is None:
            known = copy.copy(self.policy)  # the same network, with a memory of its own
            known.reset()
        if session is not None:
            self.sessions[str(session)] = known
            if len(self.sessions) > MAX_SESSIONS:
                self.sessions.popitem(last=False)
        return known


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: PolicyServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with the metadata of the file."""
        self.answer(200, self.server.policy.about)

    def do_POST(self) -> None:
        """Answer an observation with an action; status 400 says what is wrong with it."""
        try:
            size = int(self.headers.get("Content-Length", 0))
            if not 0 < size <= MAX_BYTES:
                raise ValueError(f"a request has 1 to {MAX_BYTES} bytes")
            self.answer(200, self.server.act(json.loads(self.rfile.read(size))))
        except Exception as error:  # noqa: BLE001 - told to whoever asks
            self.close_connection = True
            self.answer(400, {"error": f"{type(error).__name__}: {error}"})

    def answer(self, status: int, what: dict[str, Any]) -> None:
        """Send JSON; arrays become lists."""
        body = json.dumps(what, default=lambda x: x.tolist()).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print no line for each request."""


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Serve an exported policy over HTTP.")
    parser.add_argument("file", help="written by gossamer export --format onnx")
    parser.add_argument("--host", default="127.0.0.1", help="[127.0.0.1]")
    parser.add_argument("--port", type=int, default=8000, help="0: any [8000]")
    parser.add_argument("--seed", type=int, help="of sampled actions")
    asked = parser.parse_args()
    with PolicyServer(asked.file, asked.host, asked.port, asked.seed) as server:
        print(f"serving {asked.file} at http://{asked.host}:{server.server_port}/act", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
