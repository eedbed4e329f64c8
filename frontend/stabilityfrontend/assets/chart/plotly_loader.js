// Loads plotly.js, which the large chart needs to be zoomed and nothing needs to be seen: after the first charts, when the
// page rests.

/** plotly.js waits for a quiet moment this long after the first chart. */
const WAIT_MS = 800;
/** Between two tries. */
const AGAIN_MS = 3000;

let loading = null;

/** Load plotly.js once, from our own server. */
function loadPlotly(url) {
  if (window.Plotly) return Promise.resolve(window.Plotly);
  if (!loading) {
    loading = new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = url;
      script.onload = () => resolve(window.Plotly);
      script.onerror = () => {
        loading = null;
        script.remove();
        reject(new Error("plotly.js did not load"));
      };
      document.head.append(script);
    });
  }
  return loading;
}

/** Loads it for one page; `url` is where it is, `element` where the pointer needs it, `onLoaded` what follows. */
export class PlotlyLoader {
  constructor(url, element, onLoaded) {
    this.url = url;
    this.element = element;
    this.onLoaded = onLoaded;
  }

  /** Load it when the page rests, or when the pointer comes to the large chart. */
  soon() {
    if (this.asked) return;
    this.asked = true;
    const load = () => {
      if (!this.gone && !this.coming) this.load();
    };
    this.element.addEventListener("pointerenter", load, { once: true });
    // Safari has no idle callback.
    if (window.requestIdleCallback) requestIdleCallback(load, { timeout: WAIT_MS });
    else setTimeout(load, WAIT_MS / 2);
  }

  /** Again and again while the server is away: without it the large chart can't be zoomed. */
  async load() {
    this.coming = true;
    try {
      await loadPlotly(this.url);
      performance.mark("stability-plotly");
      if (!this.gone) this.onLoaded();
    } catch {
      if (!this.gone) this.timer = setTimeout(() => this.load(), AGAIN_MS);
    }
  }

  close() {
    this.gone = true;
    clearTimeout(this.timer);
  }
}
