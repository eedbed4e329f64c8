// Texts for the clipboard.

import { h } from "./dom.js";

/** Copy a text; resolves to whether it worked. Plain http beyond loopback has no clipboard, so there is the old way too. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = h("textarea.off-screen", { "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
