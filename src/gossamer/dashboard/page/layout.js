// Where the nodes of a graph stand: rings and small or full graphs in a circle, others by forces. Always the same way.

const ROUNDS = 300;

function neighbours(nodes, links) {
  const found = new Map(nodes.map((node) => [node, new Set()]));
  for (const [a, b] of links) {
    if (a === b || !found.has(a) || !found.has(b)) continue;
    found.get(a).add(b);
    found.get(b).add(a);
  }
  return found;
}

/** Return the nodes in the order of the ring that the links form, or null if they form none. */
export function ringOrder(nodes, links) {
  const beside = neighbours(nodes, links);
  if (nodes.length < 3 || [...beside.values()].some((each) => each.size !== 2)) return null;
  const order = [nodes[0]];
  let last = null;
  while (order.length <= nodes.length) {
    const here = order.at(-1);
    const [next] = [...beside.get(here)].filter((each) => each !== last).sort((a, b) => a - b);
    if (next === undefined || next === nodes[0]) break;
    last = here;
    order.push(next);
  }
  return order.length === nodes.length ? order : null;
}

function circle(order) {
  const places = new Map();
  order.forEach((node, at) => {
    const angle = (2 * Math.PI * at) / order.length - Math.PI / 2;
    places.set(node, order.length === 1 ? [0.5, 0.5] : [0.5 + 0.5 * Math.cos(angle), 0.5 + 0.5 * Math.sin(angle)]);
  });
  return places;
}

// Fruchterman and Reingold 1991: links pull, all nodes push, steps shrink.
function forces(nodes, links, begin) {
  const places = nodes.map((node) => [...begin.get(node)]);
  const index = new Map(nodes.map((node, at) => [node, at]));
  const pairs = links.map(([a, b]) => [index.get(a), index.get(b)]).filter(([a, b]) => a !== b && a !== undefined && b !== undefined);
  const ideal = 0.9 / Math.sqrt(nodes.length);
  for (let round = 0; round < ROUNDS; round++) {
    const moves = nodes.map(() => [0, 0]);
    const add = (a, b, size) => {
      let [x, y] = [places[b][0] - places[a][0], places[b][1] - places[a][1]];
      const far = Math.hypot(x, y) || 1e-6;
      [x, y] = [(x / far) * size(far), (y / far) * size(far)];
      moves[a][0] += x;
      moves[a][1] += y;
      moves[b][0] -= x;
      moves[b][1] -= y;
    };
    for (let a = 0; a < nodes.length; a++) for (let b = 0; b < a; b++) add(a, b, (far) => -(ideal * ideal) / far);
    for (const [a, b] of pairs) add(a, b, (far) => (far * far) / ideal);
    const heat = 0.1 * (1 - round / ROUNDS);
    moves.forEach(([x, y], at) => {
      const far = Math.hypot(x, y) || 1e-6;
      const step = Math.min(far, heat) / far;
      places[at][0] += x * step;
      places[at][1] += y * step;
    });
  }
  const fit = (axis) => {
    const values = places.map((place) => place[axis]);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return (value) => (high > low ? (value - low) / (high - low) : 0.5);
  };
  const [fitX, fitY] = [fit(0), fit(1)];
  return new Map(nodes.map((node, at) => [node, [fitX(places[at][0]), fitY(places[at][1])]]));
}

/** Return {kind, places}: for each node a place in the unit square; links are [node, node]. */
export function layout(nodes, links) {
  const ring = ringOrder(nodes, links);
  if (ring) return { kind: "ring", places: circle(ring) };
  const beside = neighbours(nodes, links);
  const degrees = [...beside.values()].map((each) => each.size);
  const full = degrees.every((degree) => degree === nodes.length - 1);
  // Where all have equally many neighbours the circle in order of rank shows the pattern best.
  const even = nodes.length <= 32 && degrees.every((degree) => degree === degrees[0]);
  if (nodes.length < 4 || full || even || links.length === 0) return { kind: "circle", places: circle(nodes) };
  return { kind: "forces", places: forces(nodes, links, circle(nodes)) };
}
