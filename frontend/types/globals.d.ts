// What stands in `window` and is not ours: plotly.js, and what Dash calls.

interface Window {
  Plotly: any;
  dash_clientside: any;
}
