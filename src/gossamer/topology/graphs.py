"""Graphs over learners: named ones, ones given as a matrix, their weights, and how fast they mix.

A graph is, for every learner, whom it hears. Weights are, for every learner, {peer: weight}, itself
included; each row sums to 1.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import random
from typing import TYPE_CHECKING, Any, cast

from gossamer.errors import ConfigError
from gossamer.system.reading import clipped, expand, parse_json, read_plain

if TYPE_CHECKING:
    from numpy.typing import NDArray

Graph = tuple[tuple[int, ...], ...]
"""Ranks that each learner hears, ascending."""
Weights = tuple[dict[int, float], ...]
"""Weights of each learner, {rank: weight}: ranks ascending, weights summing to 1."""

DIRECTED = ("ring", "exponential", "complete", "rotating")
UNDIRECTED = ("ring", "grid", "star", "complete", "random-regular", "erdos-renyi")
_FILE = "as JSON or as rows of numbers with blanks or commas between"
_TRIES = 1000
"""Draws of a random graph before it is given up as impossible."""


@functools.cache
def directed(graph: str, num_learners: int, num_peers: int) -> tuple[Graph, ...]:
    """Return the graphs that a name stands for, to be taken in turn update by update.

    Learner r hears r - 1, r - 2, ... ("ring", "complete"), or r - 1, r - 2, r - 4, ...
    ("exponential"; "rotating" goes through the same distances, `num_peers` at a time).

    Args:
        graph: one of DIRECTED.
        num_learners: L.
        num_peers: how many each hears; 0 is 1 for ring and rotating, all there are for the others.
    """
    if num_learners == 1 and not num_peers:
        return (((),),)
    powers = [1 << i for i in range(max(num_learners - 1, 0).bit_length())]
    every = {"ring": list(range(1, num_learners)), "complete": list(range(1, num_learners)),
             "exponential": powers, "rotating": powers}[graph]  # fmt: skip
    count = num_peers or (1 if graph in ("ring", "rotating") else len(every))
    if graph == "complete" and count < len(every):
        raise ConfigError(
            f"topology.num_peers is {num_peers}, but in a complete graph of {num_learners} every learner "
            f"hears all {len(every)} others; leave num_peers out, or choose a sparser graph: --topology.graph ring"
        )
    if count > len(every):
        raise ConfigError(
            f"topology.num_peers is {num_peers}, but a learner of the {graph} graph of {num_learners} "
            f"has at most {len(every)} peers: --topology.num-peers {len(every)}"
        )
    if graph != "rotating" or not every:
        return (_circulant(num_learners, every[:count]),)
    starts = range(0, len(every) * count // math.gcd(len(every), count), count)
    turns = [[every[(start + i) % len(every)] for i in range(count)] for start in starts]
    return tuple(_circulant(num_learners, turn) for turn in turns)


def _circulant(num_learners: int, distances: list[int]) -> Graph:
    return tuple(
        tuple(sorted((rank - d) % num_learners for d in distances)) for rank in range(num_learners)
    )


@functools.cache
def undirected(adjacency: str, num_learners: int, degree: int, seed: int) -> Graph:
    """Return the graph that a name, a matrix written out, or a file with one stands for.

    Args:
        adjacency: one of UNDIRECTED, "[[0,1],[1,0]]", or a file as `read_matrix` reads it.
        num_learners: L.
        degree: links of each learner in a random graph (on average in "erdos-renyi").
        seed: of random graphs.
    """
    if num_learners == 1 and adjacency in UNDIRECTED:
        return ((),)
    if adjacency == "random-regular":
        return _random_regular(num_learners, degree, seed)
    if adjacency == "erdos-renyi":
        return _erdos_renyi(num_learners, degree, seed)
    if adjacency not in UNDIRECTED:
        return _from_matrix(adjacency, num_learners)
    everyone = range(num_learners)
    if adjacency == "ring":
        links = {(rank, (rank + 1) % num_learners) for rank in everyone}
    elif adjacency == "star":
        links = {(0, rank) for rank in everyone[1:]}
    elif adjacency == "complete":
        links = {(i, j) for i in everyone for j in range(i)}
    else:
        # As square as it goes: the widest divisor not above the root.
        width = max(w for w in range(1, math.isqrt(num_learners) + 1) if num_learners % w == 0)
        links = {(r, r + 1) for r in everyone if (r + 1) % width}
        links |= {(r, r + width) for r in everyone[:-width]}
    return _of_links(num_learners, links)


def _of_links(num_learners: int, links: set[tuple[int, int]]) -> Graph:
    heard: list[set[int]] = [set() for _ in range(num_learners)]
    for i, j in links:
        if i != j:
            heard[i].add(j)
            heard[j].add(i)
    return tuple(tuple(sorted(peers)) for peers in heard)


def _random_regular(num_learners: int, degree: int, seed: int) -> Graph:
    if degree >= num_learners or num_learners * degree % 2 or (degree < 2 < num_learners):
        fits = 2 if num_learners > 2 else 1
        raise ConfigError(
            f"topology.degree is {degree} for {num_learners} learners; a random-regular graph needs "
            f"{fits} <= degree < learners, and learners times degree even: --topology.degree {fits}"
        )
    if num_learners == 2:
        return ((1,), (0,))
    draw = _generator("random-regular", num_learners, degree, seed)
    # Start from a circulant graph and swap the ends of pairs of links: every regular graph is in reach.
    links = {_link(r, (r + d) % num_learners) for r in range(num_learners)
             for d in range(1, degree // 2 + 1)}  # fmt: skip
    if degree % 2:
        links |= {_link(r, r + num_learners // 2) for r in range(num_learners // 2)}
    for _ in range(_TRIES):
        links = _swapped(links, draw)
        graph = _of_links(num_learners, links)
        if connected(graph):  # nearly always, of three links each or more
            return graph
    raise AssertionError((num_learners, degree, seed))


def _swapped(links: set[tuple[int, int]], draw: random.Random) -> set[tuple[int, int]]:
    """Swap ends of random pairs of links, ten times as often as there are links."""
    links, ordered = set(links), sorted(links)
    for _ in range(10 * len(ordered)):
        a, b = draw.sample(range(len(ordered)), 2)
        (i, j), (k, m) = ordered[a], ordered[b]
        if draw.random() < 0.5:
            k, m = m, k
        swapped = _link(i, m), _link(k, j)
        if len({i, j, k, m}) < 4 or swapped[0] in links or swapped[1] in links:
            continue
        links -= {ordered[a], ordered[b]}
        links |= set(swapped)
        ordered[a], ordered[b] = swapped
    return links


def _erdos_renyi(num_learners: int, degree: int, seed: int) -> Graph:
    """Every link with the same probability, drawn anew until all are connected."""
    chance = min(degree / max(num_learners - 1, 1), 1.0)
    draw = _generator("erdos-renyi", num_learners, degree, seed)
    for _ in range(_TRIES):
        links = {(i, j) for i in range(num_learners) for j in range(i) if draw.random() < chance}
        graph = _of_links(num_learners, links)
        if connected(graph):
            return graph
    raise ConfigError(
        f"topology.degree is {degree}: {_TRIES} erdos-renyi graphs of {num_learners} learners were all "
        f"disconnected; raise the degree: --topology.degree {math.ceil(2 * math.log(num_learners))}"
    )


def _generator(*key: object) -> random.Random:
    return random.Random(" ".join(map(str, key)))  # noqa: S311 - a graph, not a secret


def _link(i: int, j: int) -> tuple[int, int]:
    return (i, j) if i < j else (j, i)


def _from_matrix(adjacency: str, num_learners: int) -> Graph:
    matrix = read_matrix(adjacency, UNDIRECTED, "topology.adjacency")
    check_square(matrix, num_learners, "topology.adjacency")
    for i, row in enumerate(matrix):
        for j, x in enumerate(row):
            if x not in (0, 1):
                raise ConfigError(f"topology.adjacency: row {i} holds {x:g}; links are 0 or 1")
            if i == j and x:
                raise ConfigError(
                    f"topology.adjacency: row {i} links learner {i} to itself; the diagonal must be 0"
                )
            if x != matrix[j][i]:
                raise ConfigError(
                    f"topology.adjacency: row {i} says {x:g} for learner {j}, row {j} says "
                    f"{matrix[j][i]:g} for learner {i}; a link joins both or neither"
                )
    graph = tuple(tuple(j for j, x in enumerate(row) if x) for row in matrix)
    if not connected(graph):
        reached = sorted(_reached(graph))
        missing = min(set(range(num_learners)) - set(reached))
        raise ConfigError(
            f"topology.adjacency: no path joins learners 0 and {missing}; all must be connected: add a "
            f"link to row {missing}"
        )
    return graph


def read_matrix(text: str, names: tuple[str, ...], setting: str) -> list[list[float]]:
    """Read a matrix written out or in a file; refuse anything else, saying which names there are.

    A file holds JSON, or a line for each row: numbers with blanks or commas between.
    """
    source = text.strip()
    if not source.startswith("["):
        try:
            source = read_plain(expand(source)).decode().strip()
        except (OSError, ValueError):
            near = difflib.get_close_matches(source.lower(), names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"{setting} is {clipped(text)!r}; it must be one of {', '.join(names)}, a matrix such as "
                f'"[[0,1],[1,0]]", or a file that holds one, {_FILE}{hint}'
            ) from None
    try:
        if source.startswith("["):
            found: Any = parse_json(source)
        else:
            found = [[float(x) for x in line.replace(",", " ").split()]
                     for line in source.splitlines() if line.strip()]  # fmt: skip
        matrix = [[_number(x) for x in cast("list[Any]", row)] for row in found]
    except (ValueError, TypeError, OverflowError):
        raise ConfigError(
            f"{setting} is not a matrix: {text[:60]!r}; write rows of numbers, "
            f'"[[0,1,1],[1,0,1],[1,1,0]]", or name a file that holds them, {_FILE}'
        ) from None
    allowed = "0 or 1" if names is UNDIRECTED else "0 or 1, or a weight >= 0"
    for i, row in enumerate(matrix):
        for j, x in enumerate(row):
            if not 0 <= x < math.inf:
                raise ConfigError(
                    f"{setting}: row {i}, entry {j} (both counted from 0) is {x:g}; it must be {allowed}"
                )
    return matrix


def written_out(text: str, names: tuple[str, ...], setting: str) -> str:
    """Return a matrix that is in a file as it would be typed; a name, or what is typed already, as it is."""
    if text in names or text.strip().startswith("["):
        return text
    matrix = read_matrix(text, names, setting)
    rows = [[int(x) if x.is_integer() else x for x in row] for row in matrix]
    return json.dumps(rows, separators=(",", ":"))


def _number(x: Any) -> float:
    if isinstance(x, bool) or not isinstance(x, (int, float)):
        raise ValueError
    return float(x)


def check_square(matrix: list[list[float]], num_learners: int, setting: str) -> None:
    """Refuse a matrix that has not one row and one column for every learner."""
    if not matrix:
        raise ConfigError(f'{setting} has no rows; write one for every learner: "[[0,1],[1,0]]"')
    for i, row in enumerate(matrix):
        if len(row) != len(matrix):
            raise ConfigError(
                f"{setting}: row {i} has {len(row)} entries, but there are {len(matrix)} rows; it must "
                "be square"
            )
    if len(matrix) != num_learners:
        raise ConfigError(
            f"{setting} is {len(matrix)} x {len(matrix)} for {num_learners} learner(s): "
            f"--num-learners {len(matrix)}, or a matrix of {num_learners} rows"
        )


@functools.cache
def given_weights(graph: str, num_learners: int) -> Weights:
    """Return the weights that a matrix written out or in a file stands for.

    Whole rows of 0 and 1 say who is heard, with equal weights (the diagonal does not matter);
    otherwise entries are the weights themselves, and every row must sum to 1.
    """
    matrix = read_matrix(graph, DIRECTED, "topology.graph")
    check_square(matrix, num_learners, "topology.graph")
    if all(x in (0, 1) for row in matrix for x in row):
        heard = tuple(tuple(j for j, x in enumerate(row) if x and j != i)
                      for i, row in enumerate(matrix))  # fmt: skip
        weights = uniform(heard)
    else:
        for i, row in enumerate(matrix):
            if abs(sum(row) - 1.0) > 1e-6:
                raise ConfigError(f"topology.graph: row {i} sums to {sum(row):g}; weights of a row must "
                                  "sum to 1")  # fmt: skip
        weights = tuple({j: x / sum(row) for j, x in enumerate(row) if x or j == i}
                        for i, row in enumerate(matrix))  # fmt: skip
    heard = tuple(tuple(j for j in row if j != i) for i, row in enumerate(weights))
    if not (connected(heard) and connected(turned(weights))):
        raise ConfigError(
            "topology.graph: the graph is not connected; a path must lead from every learner to every other"
        )
    return weights


def connected(graph: Graph) -> bool:
    """Whether every learner can be reached from learner 0."""
    return len(_reached(graph)) == len(graph)


def _reached(graph: Graph) -> set[int]:
    reached, todo = {0}, [0]
    while todo:
        for peer in graph[todo.pop()]:
            if peer not in reached:
                reached.add(peer)
                todo.append(peer)
    return reached


def uniform(graph: Graph) -> Weights:
    """1 / (peers + 1) for each of them and oneself, as GALA and Diff-DAC publish."""
    return tuple({j: 1.0 / (len(peers) + 1) for j in sorted((*peers, i))}
                 for i, peers in enumerate(graph))  # fmt: skip


def metropolis(graph: Graph) -> Weights:
    """1 / (1 + the greater degree) for each link, the rest for oneself: symmetric, keeps the average.

    Xiao, Boyd and Kim (2007), Distributed average consensus with least-mean-square deviation, eq. 5.
    """
    rows: list[dict[int, float]] = []
    for i, peers in enumerate(graph):
        row = {j: 1.0 / (1 + max(len(peers), len(graph[j]))) for j in peers}
        row[i] = 1.0 - sum(row.values())
        rows.append(dict(sorted(row.items())))
    return tuple(rows)


def turned(weights: Weights) -> Graph:
    """Return by learner who hears it."""
    heard: list[list[int]] = [[] for _ in weights]
    for i, row in enumerate(weights):
        for j in row:
            if j != i:
                heard[j].append(i)
    return tuple(tuple(peers) for peers in heard)


def expected(weights: Weights, link_drop: float) -> Weights:
    """Return the mean of weights of which each link's stays with oneself with probability `link_drop`."""
    return tuple(
        {j: x * (1.0 - link_drop) + (link_drop if j == i else 0.0) for j, x in row.items()}
        for i, row in enumerate(weights)
    )


def contraction(turns: tuple[Weights, ...]) -> float:
    """Return the factor per round by which synchronous mixing shrinks disagreement, in [0, 1].

    The second-largest |eigenvalue| of the mixing matrix; over several matrices taken in turn, of their
    product, per round.
    """
    import numpy as np

    size = len(turns[0])
    product = np.eye(size)
    for weights in turns:
        product = _matrix(weights) @ product
    if size == 1:
        return 0.0
    moduli = np.sort(np.abs(np.linalg.eigvals(product)))
    second = float(moduli[-2])
    # Rounding leaves 1e-8 of a defective zero.
    return 0.0 if second < 1e-7 else min(second, 1.0) ** (1.0 / len(turns))


def outer_contraction(
    turns: tuple[Weights, ...],
    mixings: int,
    momentum: float,
    rate: float,
    *,
    nesterov: bool,
    mixes_u: bool = False,
) -> float:
    """Return the factor per version by which mixing and an outer step shrink disagreement; above 1 they let it grow.

    They do with momentum where a graph has directed cycles: its matrix has complex eigenvalues, which momentum turns
    further. The largest |eigenvalue| but those of consensus of the map of (parameters, learning rate * u), per version.

    Args:
        turns: matrices that mixings take in turn.
        mixings: in a version.
        momentum: of the outer step.
        rate: likewise.
        nesterov: likewise.
        mixes_u: u is mixed as parameters are.
    """
    import numpy as np

    size, versions = len(turns[0]), len(turns) // math.gcd(len(turns), mixings)
    matrices, one = [_matrix(weights) for weights in turns], np.eye(size)
    own, of_u = (rate, rate * momentum) if nesterov else (0.0, rate)
    product = np.eye(2 * size)
    for version in range(versions):
        mixed = one
        for i in range(version * mixings, (version + 1) * mixings):
            mixed = matrices[i % len(turns)] @ mixed
        left = one - mixed
        u = momentum * (mixed if mixes_u else one)
        step = np.block([[one - (own + of_u) * left, -of_u * u], [left, u]])
        product = step @ product
    others = np.linalg.eigvals(product)
    # In consensus the mean of the parameters stays, and that of u falls by the momentum.
    for agreed in (1.0, momentum**versions):
        others = np.delete(others, np.argmin(np.abs(others - agreed)))
    return float(np.abs(others).max()) ** (1.0 / versions)


def _matrix(weights: Weights) -> NDArray[Any]:
    import numpy as np

    matrix = np.zeros((len(weights), len(weights)))
    for i, row in enumerate(weights):
        for j, weight in row.items():
            matrix[i, j] = weight
    return matrix
