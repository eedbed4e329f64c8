// What stands in `window` and is not ours: plotly.js, and what Dash calls.

interface Window {
  Plotly: any;
  React: any;
  dashAgGridComponentFunctions: any;
  dash_clientside: any;
}
