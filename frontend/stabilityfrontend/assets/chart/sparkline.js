// A small line without axes, as SVG.

import { robustRange } from "./downsample.js";

const SVG = "http://www.w3.org/2000/svg";

/** A line without axes. `values` may hold null for gaps; the colour is a CSS colour. */
export function sparkline(values, color, width, height) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "spark");
  const finite = values.filter((value) => Number.isFinite(value));
  if (finite.length < 2) return svg;
  const [low, high] = robustRange(finite);
  const span = high - low || 1;
  const clamp = (value) => Math.min(1, Math.max(0, (value - low) / span));
  let path = "";
  let open = false;
  values.forEach((value, index) => {
    if (!Number.isFinite(value)) {
      open = false;
      return;
    }
    const x = (index / (values.length - 1)) * width;
    const y = height - 2 - clamp(value) * (height - 4);
    path += `${open ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`;
    open = true;
  });
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  line.setAttribute("fill", "none");
  line.setAttribute("stroke", color);
  line.setAttribute("stroke-width", "1.5");
  line.setAttribute("stroke-linejoin", "round");
  line.setAttribute("vector-effect", "non-scaling-stroke");
  svg.append(line);
  return svg;
}
