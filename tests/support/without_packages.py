"""Run commands of gossamer in a process in which packages are not installed: PACKAGES on one line, then commands as JSON."""

import contextlib
import io
import json
import sys

PACKAGES = sys.stdin.readline().split()


class Hidden:
    """A finder that finds everything but some packages."""

    def __init__(self, finder):
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in PACKAGES:
            return None
        return self._finder.find_spec(name, path, target)


sys.meta_path[:] = [Hidden(finder) for finder in sys.meta_path]

if __name__ == "__main__":
    from gossamer import cli

    told = []
    for words in json.load(sys.stdin):
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = cli.main(words)
        except BaseException as error:
            code, err = repr(error), io.StringIO(f"Traceback {error!r}")
        told.append([words, code, err.getvalue()])
    print("\n" + json.dumps(told))
