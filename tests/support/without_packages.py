"""Run commands of gossamer where packages are not installed: standard input is JSON, a list of [packages, commands].

Each entry has a process of its own, forked from one that has imported what every command does.
"""

import contextlib
import io
import json
import os
import sys


class Hidden:
    """A finder that finds everything but some packages."""

    def __init__(self, finder, packages):
        self._finder, self._packages = finder, packages

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self._packages:
            return None
        return self._finder.find_spec(name, path, target)


def run(packages, commands):
    """Return of each command its exit code and what it said."""
    from gossamer import cli

    assert not {name.partition(".")[0] for name in sys.modules}.intersection(packages)
    sys.meta_path[:] = [Hidden(finder, packages) for finder in sys.meta_path]
    told = []
    for words in commands:
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = cli.main(words)
        except BaseException as error:
            code, err = repr(error), io.StringIO(f"Traceback {error!r}")
        told.append([words, code, err.getvalue()])
    return told


if __name__ == "__main__":
    import gossamer.run.evaluate
    import gossamer.run.train  # noqa: F401

    for entry in json.load(sys.stdin):
        child = os.fork()
        if not child:
            print("\n" + json.dumps(run(*entry)), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, entry
