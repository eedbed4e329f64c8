// The curve of a whole run in a cell: a band from the least to the greatest value of each stretch of its steps.

const SVG = "http://www.w3.org/2000/svg";
/** Height of the greatest value in what the server sends. */
const TOP = 100;

/** `curve`: of the server's row. The colours are in the style sheet. */
export function runCurve(curve, width = 132, height = 26) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "run-curve");
  const count = curve.low.length;
  const x = (index) => (count > 1 ? (index / (count - 1)) * width : width / 2).toFixed(1);
  const y = (value) => (height - 2 - (value / TOP) * (height - 4)).toFixed(1);
  const band = [];
  const line = [];
  const close = (begin, end) => {
    const up = [];
    const down = [];
    for (let at = begin; at < end; at += 1) {
      up.push(`${x(at)},${y(curve.high[at])}`);
      down.unshift(`${x(at)},${y(curve.low[at])}`);
    }
    if (up.length > 1) band.push(`M${up.join("L")}L${down.join("L")}Z`);
    const middle = up.map(
      (_, index) => `${x(begin + index)},${y((curve.high[begin + index] + curve.low[begin + index]) / 2)}`,
    );
    if (middle.length) line.push(`M${middle.join("L")}${middle.length === 1 ? "h1" : ""}`);
  };
  let begin = -1;
  for (let at = 0; at <= count; at += 1) {
    const there = at < count && curve.low[at] !== null && curve.high[at] !== null;
    if (there && begin < 0) begin = at;
    if (!there && begin >= 0) {
      close(begin, at);
      begin = -1;
    }
  }
  for (const [name, parts] of [
    ["band", band],
    ["line", line],
    ["odd", (curve.odd || []).map((at) => `M${x(at)},${height - 5}v5`)],
  ]) {
    if (!parts.length) continue;
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", String(name));
    path.setAttribute("d", parts.join(""));
    svg.append(path);
  }
  return svg;
}
