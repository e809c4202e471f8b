"""The answers of `gossamer watch`: the page, what it asks for, and what it may do."""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import math
import secrets
import threading
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import unquote

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from gossamer.compare.curves import AXES as COMPARED_AXES
from gossamer.compare.statistics import STATISTICS
from gossamer.dashboard.acts import Acts
from gossamer.dashboard.checkpoint_tar import checkpoint_tar
from gossamer.dashboard.columns import Columns
from gossamer.dashboard.comparisons import Comparisons, Question
from gossamer.dashboard.curves import curves, group
from gossamer.dashboard.details import VIDEO_TYPES, details, difference, replays
from gossamer.dashboard.events import Events
from gossamer.dashboard.extremes import RememberedExtremes
from gossamer.dashboard.graph import graph
from gossamer.dashboard.guard import Guard
from gossamer.dashboard.housekeeping import BULK_ACTS, Housekeeping
from gossamer.dashboard.listing import Listing
from gossamer.dashboard.meanings import meanings
from gossamer.dashboard.ranges import parts_of, requested
from gossamer.dashboard.removal import remove_leftovers
from gossamer.dashboard.root import Root
from gossamer.dashboard.series import AXES, metrics_of, read_series
from gossamer.dashboard.sweeps import Sweeps
from gossamer.dashboard.thinning import thin
from gossamer.dashboard.views import Views
from gossamer.errors import ConfigError
from gossamer.record.readers import table_in
from gossamer.record.runs import VIDEOS
from gossamer.system.reading import clipped, in_a_line, parse_json, visible

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from starlette.requests import Request

    from gossamer.compare.reading import ScoreSource
    from gossamer.dashboard.listing import ListedRun
    from gossamer.dashboard.root import RunFiles
    from gossamer.dashboard.series import Axis

T = TypeVar("T")
PAGE = Path(__file__).parent / "page"
PAGE_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}
TOKEN_PLACE = "GOSSAMER_TOKEN"  # noqa: S105 - where index.html has the token
POINTS, MAX_POINTS = 1500, 20_000
MAX_ASKED_RUNS = 1000
"""Most runs of one chart, of one comparison, and of one act."""
MAX_NAMED = 3
"""Runs that are named in a line about those that are not there."""
MAX_BODY_BYTES = 256 << 10
"""Of what a page sends: the longest note, or the longest address of a view, takes a tenth."""
SCORES: dict[str, ScoreSource | None] = {
    "auto": None,
    "evaluation": "evaluation",
    "training": "training",
}
"""Which scores of runs to compare, as the page asks for them; None: see `compare_runs`."""


class Mistake(Exception):
    """A request that cannot be answered.

    Args:
        text: one line that says why.
        status: of the answer.
    """

    def __init__(self, text: str, status: int = 400):
        super().__init__(text)
        self.status = status


class Dashboard:
    """All that the answers need, and the application that gives them.

    Args:
        path: the folder that is watched.
        host: address that the server listens on.
    """

    def __init__(self, path: Path, host: str = "127.0.0.1"):
        self.root = Root(path)
        self.listing = Listing(self.root)
        self.events = Events(self.listing)
        self.columns = Columns(self.root, self.events.rows_read)
        self._comparisons = Comparisons(self.root)
        self._all_sweeps = Sweeps(self.root, self.listing)
        self.views = Views(self.root)
        self._acts = Acts()
        self._extremes = RememberedExtremes()
        self._housekeeping = Housekeeping(self.root)
        self._token = secrets.token_urlsafe(32)
        get = {
            "/": self._index,
            "/static/{name}": self._static,
            "/plotly.js": self._plotly,
            "/api/runs": self._runs,
            "/api/metrics": self._metrics,
            "/api/series": self._series,
            "/api/curves": self._curves,
            "/api/compare": self._compare,
            "/api/sweeps": self._sweeps,
            "/api/sweep": self._sweep,
            "/api/groups": self._groups,
            "/api/run": self._run,
            "/api/meanings": self._meanings,
            "/api/difference": self._difference,
            "/api/graph": self._graph,
            "/api/replay": self._replay,
            "/api/export.csv": self._export,
            "/api/views": self._views,
            "/video": self._video,
            "/checkpoint": self._checkpoint,
            "/events": self._events,
        }
        routes = [Route(path, endpoint) for path, endpoint in get.items()]
        routes.append(Route("/api/act", self._act, methods=["POST"]))
        routes.append(Route("/api/views", self._change_views, methods=["POST"]))
        self.app = Starlette(
            routes=routes,
            middleware=[Middleware(Guard, host=host, token=self._token)],
            exception_handlers={
                Mistake: _told,
                ConfigError: _told,
                404: _not_there,
                405: _not_there,
                Exception: _failed,
            },
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None]:
        # A large folder takes a while to look through, and nobody waits for this.
        threading.Thread(target=remove_leftovers, args=(self.root,), daemon=True).start()
        yield
        self.close()

    def close(self) -> None:
        """Let pages go and read no more."""
        self.events.close()
        self.columns.close()
        self._acts.close()
        self._comparisons.close()

    def _index(self, _: Request) -> Response:
        page = (PAGE / "index.html").read_text(encoding="utf-8")
        told = page.replace(TOKEN_PLACE, self._token)
        return HTMLResponse(told, headers={"Cache-Control": "no-store"})

    def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        there = {path.name: path for path in PAGE.iterdir()}  # nothing else is ever opened
        if name not in there or there[name].suffix not in PAGE_TYPES:
            raise Mistake("there is no such file", 404)
        kind = PAGE_TYPES[there[name].suffix]
        return FileResponse(there[name], media_type=kind, headers={"Cache-Control": "no-cache"})

    def _plotly(self, request: Request) -> Response:
        path = plotly_file()
        # Its address has no version, so that a browser asks now and then; four megabytes travel once.
        headers = {"Cache-Control": "max-age=86400", "ETag": f'"{metadata.version("plotly")}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return FileResponse(path, media_type="text/javascript", headers=headers)

    def _runs(self, _: Request) -> Response:
        self.listing.look()
        told = {"root": visible(str(self.root.path)), "version": self.listing.version}
        return _json({**told, "runs": self.listing.runs()})

    def _metrics(self, request: Request) -> Response:
        with self._files(_asked(request, "run")) as (files, _):
            return _json({"metrics": metrics_of(files)})

    def _series(self, request: Request) -> Response:
        run, axis = _asked(request, "run"), _axis(request)
        begin, end = (_number(request, name, float) for name in ("from", "to"))
        points, learner = _points(request), _number(request, "learner", int)
        with self._files(run):
            raw = read_series(
                self.root, self.columns, run, _asked(request, "metric"), axis, learner
            )
        found = thin(raw.x, raw.y, points, begin=begin, end=end)
        told = {"x": found.x, "y": found.y, "low": found.low, "high": found.high}
        not_positive = found.not_positive_rows if raw.exact else None
        rows = {"rows": found.rows, "not_positive_rows": not_positive}
        return _json({**told, **rows, "exact": raw.exact})

    def _curves(self, request: Request) -> Response:
        found, missing = self._curves_of(request, _asked(request, "metric"))
        return _json({"groups": found, "said": missing})

    def _groups(self, request: Request) -> Response:
        settings, missing = self._asked_runs(request)
        found = group(settings, _list(request, "by") or None)
        told = [{"label": x.label, "settings": x.settings, "runs": x.runs} for x in found]
        return _json({"groups": told, "said": missing})

    def _curves_of(
        self, request: Request, metric: str, *, wait: bool = False
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return a curve for each group of runs, and lines about runs that are not there."""
        settings, missing = self._asked_runs(request)
        axis = _axis(request)
        if axis == "time":
            raise Mistake(
                "there is no statistic of seeds over the wall clock (x=time), as they may train at different times; "
                "ask for x=env_steps, x=updates or x=seconds, or for each run"
            )
        found = curves(
            self.root,
            self.columns,
            settings,
            metric,
            axis,
            points=_points(request),
            statistic=_one_of(request, "statistic", STATISTICS),
            by=_list(request, "by") or None,
            learner=_number(request, "learner", int),
            wait=wait,
        )
        return found, missing

    async def _compare(self, request: Request) -> Response:
        question, missing = await run_in_threadpool(self._question, request)
        told = await self._comparisons.answer(question, request.is_disconnected)
        if told is None:
            raise Mistake("nobody waits for this comparison any more", 503)
        return _json({**told, "said": [*missing, *told["said"]]})

    def _question(self, request: Request) -> tuple[Question, list[str]]:
        """Return what is to be compared, and lines about runs that are not there."""
        settings, missing = self._asked_runs(request)
        question = Question(
            runs=tuple(settings),
            by=tuple(_list(request, "by")),
            axis=_one_of(request, "x", COMPARED_AXES),
            threshold=_number(request, "threshold", float),
            source=SCORES[_one_of(request, "score", tuple(SCORES))],
        )
        return question, missing

    def _sweeps(self, _: Request) -> Response:
        return _json({"sweeps": self._all_sweeps.all()})

    def _sweep(self, request: Request) -> Response:
        sweep = _asked(request, "sweep")
        if not self.listing.version:  # no page has asked for runs
            self.listing.look()
        try:
            return _json(self._all_sweeps.sweep(sweep))
        except OSError:
            raise Mistake("there is no such sweep", 404) from None

    def _run(self, request: Request) -> Response:
        with self._files(_asked(request, "run")) as (files, run):
            return _json(details(files, run))

    def _meanings(self, request: Request) -> Response:
        with self._files(_asked(request, "run")) as (files, _):
            return _json({"meanings": meanings(table_in(files, "config.json"))})

    def _difference(self, request: Request) -> Response:
        with (
            self._files(_asked(request, "a")) as (a, _),
            self._files(_asked(request, "b")) as (b, _),
        ):
            return _json({"settings": difference(a, b)})

    def _graph(self, request: Request) -> Response:
        at = _number(request, "at", float)
        with self._files(_asked(request, "run")) as (files, run):
            extremes = self._extremes.of(files, run["id"], int(run["num_learners"]))
            return _json({**graph(files, run, at), **asdict(extremes)})

    def _replay(self, request: Request) -> Response:
        with self._files(_asked(request, "run")) as (files, _):
            return _json({"replays": replays(files, metrics_of(files))})

    def _export(self, request: Request) -> Response:
        axis, metrics = _axis(request), _list(request, "metric")
        if not metrics:
            raise Mistake("metric is missing")
        text = io.StringIO()
        table = csv.writer(text)
        if request.query_params.get("statistic"):
            table.writerow(["metric", "group", "runs", axis, "value", "low", "high", "runs_here"])
            for metric in metrics:
                found, missing = self._curves_of(request, metric, wait=True)
                for line in missing:
                    table.writerow([_cell(metric), _cell(line), 0, *[""] * 5])
                for one in found:
                    if one["n"] < 2:  # extremes are no interval
                        one |= dict.fromkeys(("low", "high"), np.full(len(one["x"]), np.nan))
                    points = (one[x] for x in ("x", "y", "low", "high", "counts"))
                    for row in zip(*points, strict=True):
                        cells = [_cell(metric), _cell(one["label"]), one["n"], *map(_cell, row)]
                        table.writerow(cells)
        else:
            table.writerow(["metric", "run", axis, "value", "low", "high"])
            learner = _number(request, "learner", int)
            runs, missing = self._asked_runs(request)
            for metric, line in itertools.product(metrics, missing):
                table.writerow([_cell(metric), _cell(line), *[""] * 4])
            for metric, run in itertools.product(metrics, runs):
                # Evaluations are of the run's policy, whichever learner's rows stand beside them.
                whose = None if metric.startswith("evaluation/") else learner
                raw = read_series(self.root, self.columns, run, metric, axis, whose, wait=True)
                thinned = "points" in request.query_params
                found = thin(raw.x, raw.y, _points(request) if thinned else max(len(raw.x), 1))
                low, high = (found.y if x is None else x for x in (found.low, found.high))
                for row in zip(found.x, found.y, low, high, strict=True):
                    table.writerow([_cell(metric), _cell(run), *map(_cell, row)])
        headers = _saved_as(f"{metrics[0][:100]}.csv")
        return Response(text.getvalue(), media_type="text/csv", headers=headers)

    def _video(self, request: Request) -> Response:
        name = _asked(request, "name")
        kind = VIDEO_TYPES.get(Path(name).suffix.lower())
        if kind is None or "/" in name:
            raise Mistake(f"a video ends in {', '.join(VIDEO_TYPES)}", 404)
        with self._files(_asked(request, "run")) as (files, _):
            try:
                video = files.open(f"{VIDEOS}/{name}")
            except (OSError, ValueError):
                raise Mistake("there is no such video", 404) from None
        size = video.seek(0, io.SEEK_END)
        headers = {
            "Accept-Ranges": "bytes",
            "Cache-Control": "no-cache",
            "Content-Encoding": "identity",
        }
        try:
            part = requested(request.headers.get("range", ""), size)
        except ValueError:
            video.close()
            return Response(status_code=416, headers={"Content-Range": f"bytes */{size}"})
        begin, end = part or (0, size)
        headers["Content-Length"] = str(end - begin)
        if part is not None:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        return StreamingResponse(
            parts_of(video, begin, end),
            status_code=206 if part is not None else 200,
            media_type=kind,
            headers=headers,
        )

    def _checkpoint(self, request: Request) -> Response:
        name = _asked(request, "name")
        with self._files(_asked(request, "run")) as (files, run):
            folder = _plain_name(f"{run['name'][:100]}-{name}")
            try:
                tar = checkpoint_tar(files, name, folder)
            except ValueError as error:
                raise Mistake(str(error), 404) from None
        headers = {
            **_saved_as(f"{folder}.tar"),
            "Cache-Control": "no-cache",
            "Content-Encoding": "identity",
            "Content-Length": str(tar.num_bytes),
        }
        if request.method == "HEAD":
            tar.close()
            return Response(media_type="application/x-tar", headers=headers)
        return StreamingResponse(tar.pieces(), media_type="application/x-tar", headers=headers)

    async def _events(self, request: Request) -> Response:
        stream = self.events.stream(request.is_disconnected)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def _act(self, request: Request) -> Response:
        return await run_in_threadpool(self._do, request, await _body(request))

    def _do(self, request: Request, body: dict[str, Any]) -> Response:
        act = _asked(request, "act")
        self.listing.look()
        try:
            if act in BULK_ACTS:
                there = {run["id"] for run in self.listing.runs()}
                said = self._housekeeping.do(act, _several(request), there)
            elif act == "describe":
                said = self._housekeeping.describe(self._known(_asked(request, "run"))["id"], body)
            else:
                return self._do_to_run(_asked(request, "run"), act)
        finally:
            self.listing.look()  # pages see at once what has been done
        return _json({"said": visible(said)})

    def _do_to_run(self, run: str, act: str) -> Response:
        told = self._known(run)
        with self._files(run):  # there, and no link on the way to it
            return _json({"said": visible(self._acts.do(act, told, self.root.path / run))})

    def _views(self, _: Request) -> Response:
        return _json({"views": self.views.all()})

    async def _change_views(self, request: Request) -> Response:
        return await run_in_threadpool(self._change_view, request, await _body(request))

    def _change_view(self, request: Request, body: dict[str, Any]) -> Response:
        act = _one_of(request, "act", ("save", "delete"))
        if act == "save":
            said = self.views.save(body.get("name"), body.get("address"))
        else:
            said = self.views.delete(body.get("name"))
        return _json({"said": said, "views": self.views.all()})

    def _asked_runs(self, request: Request) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Return the settings of the runs of a chart by id, and lines about those that are not there.

        A view that was saved goes on when one of its runs is deleted.
        """
        asked = _several(request)
        found = self._settings_of(asked)
        if len(found) < len(asked):  # one of them may have begun since the last look
            self.listing.look()
            found = self._settings_of(asked)
        missing = [run for run in asked if run not in found]
        if not found:
            named = in_a_line([*map(clipped, missing)], MAX_NAMED)
            raise Mistake(f"there is no such run below this folder: {named}", 404)
        return found, [visible(f"left out: there is no run {clipped(run)}") for run in missing]

    def _settings_of(self, runs: list[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for run in runs:
            with suppress(KeyError):
                found[run] = self.listing.settings(run)
        return found

    def _known(self, run: str) -> ListedRun:
        """Return a run that there is; those that began since the last look are looked for."""
        try:
            return self.listing.run(run)
        except KeyError:
            self.listing.look()
        try:
            return self.listing.run(run)
        except KeyError:
            raise Mistake("there is no such run", 404) from None

    @contextmanager
    def _files(self, run: str) -> Generator[tuple[RunFiles, ListedRun]]:
        told = self._known(run)
        try:
            with self.root.run(run) as files:
                yield files, told
        except OSError:
            raise Mistake("there is no such run any more", 404) from None


def plotly_file() -> Path:
    """Return Plotly's own JavaScript out of its Python package, which is not imported."""
    found = importlib.util.find_spec("plotly")
    path = Path(found.origin or "").parent / "package_data" / "plotly.min.js" if found else Path()
    if not path.is_file():
        raise Mistake("Plotly's JavaScript is not installed", 404)
    return path


def _asked(request: Request, name: str) -> str:
    value = request.query_params.get(name, "")
    if not value or len(value) > 5000:
        raise Mistake(f"{name} is missing, or too long")
    return value


async def _body(request: Request) -> dict[str, Any]:
    """Return the object that a page has sent along; empty where there is none."""
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise Mistake(f"more than {MAX_BODY_BYTES >> 10} KiB were sent", 413)
    try:
        found = parse_json(content) if content else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Mistake("the body must be a JSON object")
    return cast("dict[str, Any]", found)


def _list(request: Request, name: str) -> list[str]:
    """Return the items of a list, each of which was encoded by itself, as it may hold a comma."""
    text = request.scope["query_string"].decode("ascii", "replace")
    for pair in text.split("&"):
        key, _, value = pair.partition("=")
        if unquote(key) == name:
            return list(dict.fromkeys(unquote(x.replace("+", " ")) for x in value.split(",") if x))
    return []


def _several(request: Request) -> list[str]:
    runs = _list(request, "runs")
    if not 0 < len(runs) <= MAX_ASKED_RUNS:
        raise Mistake(f"runs names {len(runs)} runs; 1 to {MAX_ASKED_RUNS} can be named")
    return runs


def _one_of(request: Request, name: str, allowed: tuple[T, ...]) -> T:
    value = request.query_params.get(name) or allowed[0]
    for one in allowed:
        if one == value:
            return one
    raise Mistake(f"{name} must be one of {', '.join(map(str, allowed))}")


def _axis(request: Request) -> Axis:
    return _one_of(request, "x", AXES)


def _number(request: Request, name: str, kind: Callable[[str], T]) -> T | None:
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        found = kind(text[:50])
    except ValueError:
        found = math.nan
    if isinstance(found, float) and not math.isfinite(found):
        raise Mistake(f"{name} must be a number")
    return found  # type: ignore[return-value]


def _points(request: Request) -> int:
    return min(max(_number(request, "points", int) or POINTS, 2), MAX_POINTS)


def _plain_name(name: str) -> str:
    """Return a name that no file system and no header takes for anything else."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    return kept.lstrip(".") or "-"


def _saved_as(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{_plain_name(name)}"'}


def _cell(value: Any) -> str:
    """Return a cell of a CSV file, empty for no number; a text that a spreadsheet would compute is kept a text."""
    if isinstance(value, str):
        return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
    return f"{value:.13g}" if math.isfinite(value) else ""


def _json(content: Any, status: int = 200) -> Response:
    """Return an answer; numbers that are not finite become null."""
    text = msgspec.json.encode(content, enc_hook=_plain)
    return Response(text, status, media_type="application/json")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(type(value).__name__)


def _told(_: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, Mistake) else 409
    return _json({"error": visible(str(error))}, status)


def _not_there(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    text = "there is nothing here" if status == 404 else "acts are POST, all else is GET"
    return _json({"error": text}, status)


def _failed(_: Request, error: Exception) -> Response:
    return _json({"error": f"the server failed: {type(error).__name__}"}, 500)
