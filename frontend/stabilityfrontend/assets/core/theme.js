// Dark or light: the system's choice until someone presses the button, then theirs, remembered.

const KEY = "stability-theme";
const listeners = new Set();

function kept() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // storage is off: follow the system
  }
}

function set(name) {
  document.documentElement.dataset.theme = name;
  for (const listener of listeners) listener(name);
}

export const colorTheme = {
  name: () => document.documentElement.dataset.theme || "dark",
  /** Call `listener` at each change; returns what ends that. */
  watch(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
  toggle() {
    const next = colorTheme.name() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // not remembered, still switched
    }
    set(next);
  },
  /** Canvases write in the shipped font too; one that was drawn before the font was there is drawn again. */
  redrawWithFont() {
    document.fonts?.load('13px "Inter Variable"').then(() => {
      for (const listener of listeners) listener(colorTheme.name());
    });
  },
  /** From now on, follow the system where nobody has chosen. */
  followSystem() {
    window.matchMedia("(prefers-color-scheme: light)").addEventListener("change", (event) => {
      if (!kept()) set(event.matches ? "light" : "dark");
    });
  },
};
