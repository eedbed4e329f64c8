// What stands in `window` and is not ours: libraries, and what Dash calls.

interface Window {
  Plotly: any;
  React: any;
  dashAgGridComponentFunctions: any;
  dash_clientside: any;
}
