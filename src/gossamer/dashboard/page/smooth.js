// Smoothing of a curve whose points need not be evenly spaced.

/**
 * Return y, each point the mean of all points weighted by exp(-distance / width).
 *
 * Points on both sides count, so a smoothed curve rises where the curve does and not later; and as the distance is that
 * in x, a thinned curve looks like the full one. `x` ascends, `width` is in its units and positive. Points that are null
 * stay null and count nothing. One pass each way: the weights of a side shrink by one factor from point to point.
 */
export function smooth(x, y, width) {
  const sums = new Float64Array(y.length);
  const weights = new Float64Array(y.length);
  const pass = (begin, end, step) => {
    let sum = 0;
    let weight = 0;
    let last = null;
    for (let i = begin; i !== end; i += step) {
      if (y[i] === null || x[i] === null) continue;
      const keep = last === null ? 0 : Math.exp(-Math.abs(x[i] - last) / width);
      sum = sum * keep + y[i];
      weight = weight * keep + 1;
      last = x[i];
      sums[i] += sum;
      weights[i] += weight;
    }
  };
  pass(0, y.length, 1);
  pass(y.length - 1, -1, -1);
  // Both passes counted the point itself.
  return y.map((value, i) => (value === null || x[i] === null ? null : (sums[i] - value) / (weights[i] - 1)));
}
