// Draws learners and the links between them as SVG.

import { svg } from "./dom.js";
import { duration, number, percent } from "./format.js";
import { layout } from "./layout.js";
import { faded, inkOn, isDark, scale, staleness, themed } from "./palette.js";

const WIDE = { width: 1000, height: 720, scale: 1 };
const NARROW = { width: 560, height: 520, scale: 0.75 };
const NARROW_PIXELS = 760;
const LEAST_TYPE = 11; // pixels, however small the graph is drawn
const DIGIT = 0.58; // width of a digit, of the size of its type
const NONE = "\u2013";

function bounds(values) {
  const known = values.filter((value) => typeof value === "number");
  return known.length ? [Math.min(...known), Math.max(...known)] : [null, null];
}

/** Return what colours and sizes mean: the ranges of the graph's numbers, over the whole run where they are known. */
export function ranges({ nodes, edges, returns, most_disagreement: apart, most_staleness_updates: stale }) {
  const [low, high] = returns ?? bounds(nodes.map((node) => node.return));
  return {
    low,
    high,
    disagreement: apart ?? bounds(nodes.map((node) => node.disagreement))[1],
    weight: bounds(edges.map((edge) => edge.weight))[1],
    stale: stale ?? bounds(edges.map((edge) => edge.staleness_updates))[1],
  };
}

/** Return what a link is called, and its facts as pairs of a name and a text. */
export function linkFacts(edge, directed) {
  return {
    title: directed ? `From learner ${edge.from} to ${edge.to}` : `Learners ${edge.from} and ${edge.to}`,
    facts: [
      ["Weight", typeof edge.weight === "number" ? percent(edge.weight) : NONE],
      ["Staleness", typeof edge.staleness_updates === "number" ? `${number(edge.staleness_updates)} mixings` : NONE],
      ["Last message", typeof edge.seconds_since === "number" ? `${duration(edge.seconds_since)} before` : NONE],
    ],
  };
}

function radius(count, size) {
  return Math.max(13, Math.min(40, (150 / Math.sqrt(count)) * size.scale));
}

// Nodes that came to lie on one another are pushed apart, inside the picture.
function apart(places, least, edge, { width, height }) {
  for (let round = 0; round < 80; round++) {
    for (let a = 0; a < places.length; a++) {
      for (let b = 0; b < a; b++) {
        const [x, y] = [places[b][0] - places[a][0], places[b][1] - places[a][1]];
        const far = Math.hypot(x, y) || 1e-6;
        if (far >= least) continue;
        const push = (least - far) / 2 / far;
        places[a][0] -= x * push;
        places[a][1] -= y * push;
        places[b][0] += x * push;
        places[b][1] += y * push;
      }
    }
    for (const place of places) {
      place[0] = Math.min(width - edge, Math.max(edge, place[0]));
      place[1] = Math.min(height - edge, Math.max(edge, place[1]));
    }
  }
}

// The outline that fills with disagreement, from the top and clockwise.
function arc(x, y, r, share) {
  const full = Math.min(0.9999, Math.max(0, share));
  const angle = 2 * Math.PI * full - Math.PI / 2;
  return `M${x} ${y - r}A${r} ${r} 0 ${full > 0.5 ? 1 : 0} 1 ${x + r * Math.cos(angle)} ${y + r * Math.sin(angle)}`;
}

/** Draws one run's graph again and again; nodes keep their places while the links stay the same. */
export class Graph {
  #key = "";
  #places = new Map();
  #pick;
  #state;
  #size = WIDE;
  #type = LEAST_TYPE; // the smallest type, in units of the picture
  #of = null; // the learner whose links are gone through by keys

  /** `pick` is called with {node} or {edge} that is pointed at, or null; `state` returns a node's state as a word. */
  constructor(pick, state) {
    this.#pick = pick;
    this.#state = state;
    this.node = svg("svg", { class: "graph", role: "group", "aria-label": "Graph of learners" });
  }

  /** Draw a graph as the server tells it: {directed, nodes, edges}. */
  draw(graph) {
    const { nodes, directed } = graph;
    const edges = this.#edges(graph);
    this.#size = this.node.parentNode.clientWidth < NARROW_PIXELS ? NARROW : WIDE;
    const { width, height } = this.#size;
    this.node.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const box = this.node.getBoundingClientRect();
    this.#type = LEAST_TYPE / (Math.min(box.width / width, box.height / height) || 1);
    const r = radius(nodes.length, this.#size);
    const key = JSON.stringify([width, nodes.map((node) => node.rank), edges.map((edge) => [edge.from, edge.to])]);
    if (key !== this.#key) {
      this.#key = key;
      const found = layout(nodes.map((node) => node.rank), edges.map((edge) => [edge.from, edge.to]));
      this.node.dataset.layout = found.kind;
      this.#places = this.#scaled(found.places, found.kind, r);
    }
    const focused = this.node.querySelector(":focus")?.dataset;
    const meaning = ranges(graph);
    this.node.replaceChildren(
      svg("g", {}, edges.map((edge) => this.#edge(edge, edges, directed, meaning, r))),
      svg("g", {}, nodes.map((node) => this.#node(node, nodes, meaning, r))),
    );
    if (focused) this.#focus(focused);
  }

  #focus({ rank, from, to }) {
    this.node.querySelector(rank === undefined ? `[data-from="${from}"][data-to="${to}"]` : `[data-rank="${rank}"]`)?.focus();
  }

  // Arrows go through the links of the learner that has the focus; Escape and Tab go on from the learner.
  #keys(event) {
    const { rank = this.#of } = event.currentTarget.dataset;
    const links = [...this.node.querySelectorAll(".edge")].filter(({ dataset }) => [dataset.from, dataset.to].includes(rank));
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const at = links.indexOf(event.currentTarget);
    if (step && links.length) {
      this.#of = rank;
      const next = at < 0 && step < 0 ? links.length - 1 : at + step;
      links.at(next % links.length).focus();
    } else if (at >= 0 && ["Escape", "Tab"].includes(event.key)) {
      this.#focus({ rank });
      if (event.key === "Tab") return;
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  #listening(what) {
    return {
      pointerenter: () => this.#point(what),
      pointerleave: () => this.#point(null),
      focus: () => this.#point(what),
      blur: () => this.#point(null),
      keydown: (event) => this.#keys(event),
    };
  }

  // An undirected link may be told from both ends.
  #edges({ edges, directed }) {
    const known = new Map();
    for (const edge of edges) {
      if (edge.from === edge.to) continue;
      const ends = directed ? [edge.from, edge.to] : [edge.from, edge.to].sort((a, b) => a - b);
      const twin = known.get(ends.join());
      const stale = Math.max(edge.staleness_updates ?? 0, twin?.staleness_updates ?? 0);
      known.set(ends.join(), twin ? { ...twin, staleness_updates: stale } : { ...edge, from: ends[0], to: ends[1] });
    }
    return [...known.values()];
  }

  #scaled(places, kind, r) {
    const edge = r + 34;
    const { width, height } = this.#size;
    // A circle stays round; forces may fill the picture.
    const side = kind === "forces" ? width - 2 * edge : Math.min(width, height) - 2 * edge;
    const scaled = new Map([...places].map(([rank, [x, y]]) => [rank, [width / 2 + (x - 0.5) * side, height / 2 + (y - 0.5) * (height - 2 * edge)]]));
    if (kind === "forces") apart([...scaled.values()], 2 * r + 22, edge, this.#size);
    return scaled;
  }

  #edge(edge, edges, directed, meaning, r) {
    const [x1, y1] = this.#places.get(edge.from) ?? [0, 0];
    const [x2, y2] = this.#places.get(edge.to) ?? [0, 0];
    const far = Math.hypot(x2 - x1, y2 - y1) || 1;
    const [ux, uy] = [(x2 - x1) / far, (y2 - y1) / far];
    const both = directed && edges.some((other) => other.from === edge.to && other.to === edge.from);
    const bend = both ? Math.min(40, far * 0.12) : 0;
    const [mx, my] = [(x1 + x2) / 2 - uy * bend * 2, (y1 + y2) / 2 + ux * bend * 2];
    // The line ends at the rims of the nodes, in the direction in which it arrives.
    const rim = (x, y) => {
      const length = Math.hypot(mx - x, my - y) || 1;
      return [(mx - x) / length, (my - y) / length];
    };
    const [ax, ay] = rim(x1, y1);
    const [bx, by] = rim(x2, y2);
    const width = 1.2 + 5 * (meaning.weight > 0 ? (edge.weight ?? 0) / meaning.weight : 0.3) * Math.min(1, 12 / Math.sqrt(edges.length + 20));
    const color = staleness(edge.staleness_updates, meaning.stale);
    const tip = directed ? 6 + width * 1.6 : 0;
    const [ex, ey] = [x2 + bx * (r + 7 + tip), y2 + by * (r + 7 + tip)];
    const shapes = [
      svg("path", { d: `M${x1 + ax * (r + 5)} ${y1 + ay * (r + 5)}Q${mx} ${my} ${ex} ${ey}`, stroke: color, "stroke-width": width, fill: "none", "stroke-opacity": edges.length > 300 ? 0.35 : 0.85 }),
    ];
    if (directed) {
      const [hx, hy] = [x2 + bx * (r + 6), y2 + by * (r + 6)];
      const wide = tip * 0.55;
      shapes.push(svg("path", { class: "arrow", d: `M${hx} ${hy}L${ex - by * wide} ${ey + bx * wide}L${ex + by * wide} ${ey - bx * wide}Z`, fill: color }));
    }
    // Thin lines are hard to hit.
    shapes.push(svg("path", { d: `M${x1} ${y1}Q${mx} ${my} ${x2} ${y2}`, stroke: "transparent", "stroke-width": Math.max(12, width), fill: "none" }));
    const { title, facts } = linkFacts(edge, directed);
    return svg(
      "g",
      {
        class: "edge",
        tabindex: "-1",
        role: "img",
        "aria-label": [title, ...facts.map(([name, text]) => `${name.toLowerCase()} ${text}`)].join(", "),
        "data-from": edge.from,
        "data-to": edge.to,
        on: this.#listening({ edge }),
      },
      shapes,
    );
  }

  #node(node, nodes, meaning, r) {
    const [x, y] = this.#places.get(node.rank) ?? [0, 0];
    const fill = node.alive ? scale(node.return, meaning.low, meaning.high) : themed("dead");
    const ink = inkOn(fill);
    const share = meaning.disagreement > 0 ? (node.disagreement ?? 0) / meaning.disagreement : 0;
    const hosts = new Set(nodes.map((each) => each.host).filter(Boolean));
    const type = (size) => Math.max(this.#type, size);
    const value = number(node.return);
    const valued = r > 26 && node.alive && value.length * DIGIT * type(r * 0.34) < 1.9 * r;
    const told = [
      `learner ${node.rank}`,
      this.#state(node),
      `return ${number(node.return)}`,
      `disagreement ${number(node.disagreement)}`,
      `${node.restarts ?? 0} restarts`,
      node.host,
    ].filter(Boolean);
    return svg(
      "g",
      {
        class: node.alive ? "node" : "node dead",
        tabindex: "0",
        role: "img",
        "aria-label": told.join(", "),
        "data-rank": node.rank,
        on: this.#listening({ node }),
      },
      svg("circle", { cx: x, cy: y, r: r + 4, fill: "none", stroke: faded(isDark() ? "#ffffff" : "#000000", 0.12), "stroke-width": 4 }),
      share > 0 && svg("path", { d: arc(x, y, r + 4, share), fill: "none", stroke: themed("accent"), "stroke-width": 4, class: "disagreement" }),
      svg("circle", { class: "disc", cx: x, cy: y, r, fill, stroke: node.alive ? "none" : themed("quiet"), "stroke-dasharray": "3 3" }),
      svg("text", { x, y: y + (valued ? -3 : 1), fill: node.alive ? ink : themed("quiet"), "font-size": type(r * 0.5), class: "rank" }, String(node.rank)),
      valued && svg("text", { x, y: y + r * 0.48, fill: ink, "font-size": type(r * 0.34) }, value),
      hosts.size > 1 && nodes.length <= 24 && svg("text", { x, y: y + r + 20, class: "host", "font-size": type(13) }, node.host ?? ""),
      node.restarts > 0 && svg("circle", { cx: x + r * 0.78, cy: y - r * 0.78, r: Math.max(this.#type * 0.8, r * 0.34), class: "badge" }),
      node.restarts > 0 && svg("text", { x: x + r * 0.78, y: y - r * 0.78 + 0.5, class: "badge-text", "font-size": type(r * 0.36) }, String(node.restarts)),
    );
  }

  // What is not pointed at steps back.
  #point(what) {
    const rank = what?.node?.rank;
    for (const each of this.node.querySelectorAll(".edge")) {
      const { from, to } = each.dataset;
      const on = what?.edge ? Number(from) === what.edge.from && Number(to) === what.edge.to : rank === undefined || Number(from) === rank || Number(to) === rank;
      each.classList.toggle("faint", what !== null && !on);
    }
    this.#pick(what);
  }
}
