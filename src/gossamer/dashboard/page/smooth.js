// Smoothing of a curve whose points need not be evenly spaced.

/**
 * Return the exponential moving average of y over x, free of the bias of its beginning.
 *
 * A point counts exp(-distance / width), so thinned and full curves look the same. `width` is in units of x and
 * positive; points that are null stay null and count nothing. Nothing after a point has a say in it.
 */
export function smooth(x, y, width) {
  const out = new Array(y.length);
  let sum = 0;
  let weight = 0;
  let last = null;
  for (let i = 0; i < y.length; i++) {
    if (y[i] === null || x[i] === null) {
      out[i] = null;
      continue;
    }
    const keep = last === null ? 0 : Math.exp(-Math.max(0, x[i] - last) / width);
    sum = sum * keep + y[i];
    weight = weight * keep + 1;
    last = x[i];
    out[i] = sum / weight;
  }
  return out;
}
