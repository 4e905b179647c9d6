// Graph layout: layers by the longest path, few crossings, straight lines where possible.
//
//   rank ──▶ bend points for long edges ──▶ order within each layer ──▶ coordinates
//
// Pure: nodes and edges in, positions out, the same every time. `along` is the axis from first to last step,
// `across` the other one; the caller decides which is horizontal. Sizes are those of a box along and across.

const SWEEPS = 8;
/** An even number of passes back and forth, and a last one forwards. */
const MOVES = 25;
/** Counting crossings is quadratic; beyond this the last order is used without counting. */
const COUNTED_MAX = 1500;
/** Beyond this many bends, long edges are drawn straight: such a graph is not readable anyway. */
const BENDS_MAX = 20_000;

/**
 * @param {string[]} names in declaration order
 * @param {{from: string, to: string}[]} edges
 * @param {{along: number, across: number, gapAlong: number, gapAcross: number}} size
 * @returns {{along: number, across: number, at: Map<string, {along: number, across: number}>,
 *            lines: {from: string, to: string, points: {along: number, across: number}[]}[]}}
 */
export function layout(names, edges, size) {
  const known = new Set(names);
  const real = edges.filter((edge) => known.has(edge.from) && known.has(edge.to) && edge.from !== edge.to);
  const ranks = rank(names, real);
  const { layers, chains } = bend(names, real, ranks);
  order(layers);
  place(layers, size);

  const all = layers.flat();
  const least = all.reduce((least, cell) => Math.min(least, cell.at - half(cell, size)), Infinity);
  const most = all.reduce((most, cell) => Math.max(most, cell.at + half(cell, size)), -Infinity);
  const start = (rank) => rank * (size.along + size.gapAlong);
  const across = (cell) => cell.at - least;
  const at = new Map(all.filter((cell) => cell.name !== null)
    .map((cell) => [cell.name, { along: start(cell.rank), across: across(cell) - size.across / 2 }]));
  const lines = chains.map(({ from, to, cells }) => {
    const points = cells.flatMap((cell, i) => {
      const [begin, end] = [start(cell.rank), start(cell.rank) + size.along];
      const sides = cells[0].rank < cells.at(-1).rank ? [begin, end] : [end, begin];
      const used = i === 0 ? [sides[1]] : i === cells.length - 1 ? [sides[0]] : sides;
      return used.map((along) => ({ along, across: across(cell) }));
    });
    return { from, to, points };
  });
  const along = layers.length ? start(layers.length - 1) + size.along : 0;
  return { along, across: all.length ? most - least : 0, at, lines };
}

const half = (cell, size) => (cell.name === null ? 0 : size.across / 2);

/** The longest path that leads to each node. An edge that closes a cycle does not count. */
function rank(names, edges) {
  const next = new Map(names.map((name) => [name, []]));
  edges.forEach((edge) => next.get(edge.from).push(edge.to));
  const state = new Map();
  const sorted = [];
  for (const root of names) {
    if (state.has(root)) continue;
    const stack = [[root, 0]];
    state.set(root, "open");
    while (stack.length) {
      const top = stack.at(-1);
      const child = next.get(top[0])[top[1]++];
      if (child === undefined) {
        state.set(top[0], sorted.push(top[0]));
        stack.pop();
      } else if (!state.has(child)) {
        state.set(child, "open");
        stack.push([child, 0]);
      }
    }
  }
  // `state` is now the position in post-order: a forward edge leads to an earlier position.
  const ranks = new Map(names.map((name) => [name, 0]));
  for (const name of sorted.reverse()) {
    for (const child of next.get(name).filter((child) => state.get(child) < state.get(name))) {
      ranks.set(child, Math.max(ranks.get(child), ranks.get(name) + 1));
    }
  }
  return ranks;
}

/** Layers of cells; an edge over several layers gets a nameless cell in each layer between. */
function bend(names, edges, ranks) {
  const layers = [];
  const add = (name, rank) => {
    const cell = { name, rank, before: [], after: [], at: 0 };
    (layers[rank] ??= []).push(cell);
    return cell;
  };
  const cells = new Map(names.map((name) => [name, add(name, ranks.get(name))]));
  let bends = 0;
  const chains = edges.map(({ from, to }) => {
    const [first, last] = [cells.get(from), cells.get(to)];
    const step = Math.sign(last.rank - first.rank);
    const chain = [first];
    for (let rank = first.rank + step; step && rank !== last.rank && bends < BENDS_MAX; rank += step, bends++) chain.push(add(null, rank));
    chain.push(last);
    const forward = step < 0 ? [...chain].reverse() : chain;
    forward.slice(1).forEach((cell, i) => {
      cell.before.push(forward[i]);
      forward[i].after.push(cell);
    });
    return { from, to, cells: chain };
  });
  return { layers, chains };
}

/** Sorts each layer by the mean position of its neighbours, back and forth; keeps the order with the fewest crossings. */
function order(layers) {
  const number = () => layers.forEach((layer) => layer.forEach((cell, i) => (cell.at = i)));
  number();
  const is_counted = layers.flat().reduce((sum, cell) => sum + cell.after.length, 0) <= COUNTED_MAX;
  let best = { crossings: is_counted ? crossings(layers) : Infinity, layers: layers.map((layer) => [...layer]) };
  for (let sweep = 0; sweep < SWEEPS && best.crossings > 0; sweep++) {
    const side = sweep % 2 ? "after" : "before";
    for (const layer of sweep % 2 ? [...layers].reverse() : layers) {
      const wish = new Map(layer.map((cell) => [cell, cell[side].length ? mean(cell[side].map((c) => c.at)) : cell.at]));
      layer.sort((a, b) => wish.get(a) - wish.get(b) || a.at - b.at).forEach((cell, i) => (cell.at = i));
    }
    const found = is_counted ? crossings(layers) : 0;
    if (found < best.crossings) best = { crossings: found, layers: layers.map((layer) => [...layer]) };
  }
  best.layers.forEach((layer, i) => (layers[i] = layer));
  number();
}

function crossings(layers) {
  let count = 0;
  for (const layer of layers) {
    const edges = layer.flatMap((cell) => cell.after.map((to) => [cell.at, to.at]));
    edges.forEach(([a, b], i) => {
      for (let j = i + 1; j < edges.length; j++) if ((a - edges[j][0]) * (b - edges[j][1]) < 0) count++;
    });
  }
  return count;
}

/** Moves every cell towards the mean of its neighbours without changing the order. */
function place(layers, size) {
  const room = (a, b) => half(a, size) + half(b, size) + size.gapAcross;
  layers.forEach((layer) => layer.forEach((cell, i) => (cell.at = i ? layer[i - 1].at + room(layer[i - 1], cell) : 0)));
  for (let sweep = 0; sweep < MOVES; sweep++) {
    for (const layer of sweep % 2 ? [...layers].reverse() : layers) {
      // First one way, then both, so that a join sits between its branches and its follower; the last move
      // only looks back: a chain, or a long edge, is then one straight line with one bend at its end.
      const is_last = sweep === MOVES - 1;
      const sides = !is_last && sweep > MOVES / 2 ? ["before", "after"] : [sweep % 2 ? "after" : "before"];
      const neighbours = (cell) => sides.flatMap((side) => cell[side]);
      const wishes = layer.map((cell) => (neighbours(cell).length ? mean(neighbours(cell).map((c) => c.at)) : cell.at));
      settle(layer, wishes, room);
    }
  }
}

/** The positions nearest to the wishes (least squares) that keep order and distance: pooled adjacent violators. */
function settle(layer, wishes, room) {
  const blocks = [];
  let offset = 0;
  layer.forEach((cell, i) => {
    offset += i ? room(layer[i - 1], cell) : 0;
    const weight = cell.name === null ? 3 : 1; // prefer straight long edges
    let block = { sum: (wishes[i] - offset) * weight, weight, members: [[cell, offset]] };
    while (blocks.length && blocks.at(-1).sum / blocks.at(-1).weight > block.sum / block.weight) {
      const last = blocks.pop();
      block = { sum: last.sum + block.sum, weight: last.weight + block.weight, members: last.members.concat(block.members) };
    }
    blocks.push(block);
  });
  for (const block of blocks) for (const [cell, offset] of block.members) cell.at = block.sum / block.weight + offset;
}

const mean = (numbers) => numbers.reduce((sum, n) => sum + n, 0) / numbers.length;
