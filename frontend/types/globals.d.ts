// What stands in `window` and is not ours: libraries, and what Dash calls.

interface Window {
  _dashPlotlyJSURL: string;
  Plotly: any;
  React: any;
  dashAgGridComponentFunctions: any;
  dash_clientside: any;
}
